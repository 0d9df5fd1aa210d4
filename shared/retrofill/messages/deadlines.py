"""Messages on ``deadlines``, ``deadline-missed``, ``callback-requests`` and ``callback-events``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from retrofill.domain.pipeline import Reference
from retrofill.domain.run import RunState
from retrofill.messages.base import Message, Moment


class DeadlineArmed(Message):
    """A hint to the watcher: this shard has a deadline in the near future that its memory may not have yet."""

    type: Literal["DeadlineArmed"] = "DeadlineArmed"
    deadline_id: int
    due_at: Moment


class DeadlineResolved(Message):
    """A hint to the watcher: the run of this deadline ended, so it can be decided now."""

    type: Literal["DeadlineResolved"] = "DeadlineResolved"
    deadline_id: int


class DeadlineMissed(Message):
    """The run was not done at the moment, by the database's clock."""

    type: Literal["DeadlineMissed"] = "DeadlineMissed"
    deadline_id: int
    alert: str
    pipeline: str
    backfill_id: str
    run_id: int
    interval_start: Moment
    interval_end: Moment
    reference: Reference
    due_at: Moment
    detected_at: Moment
    run_state: RunState
    run_attempt: int
    callback: str | None = None


class CallbackRequested(Message):  # type: ignore[no-redef]  # the plugin takes the field kwargs for **kwargs
    """There is a callback row to be called."""

    type: Literal["CallbackRequested"] = "CallbackRequested"
    deadline_id: int
    callback: str
    kwargs: dict[str, JsonValue] = Field(default_factory=dict)


class CallbackSucceeded(Message):
    """The callback returned."""

    type: Literal["CallbackSucceeded"] = "CallbackSucceeded"
    deadline_id: int
    callback: str
    attempts: int


class CallbackFailed(Message):
    """The callback failed for good, after ``attempts`` calls."""

    type: Literal["CallbackFailed"] = "CallbackFailed"
    deadline_id: int
    callback: str
    attempts: int
    message: str
