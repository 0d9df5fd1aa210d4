"""Deadline alerts: a pipeline's rules, from which the deadlines of its runs are created."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pydantic import AwareDatetime, Field, JsonValue, model_validator

from retrofill.sdk.names import Reference as Reference
from retrofill_core.domain.data import Data, Name
from retrofill_core.domain.target import CallbackTarget, FunctionCall
from retrofill_core.domain.templates import BACKFILL_FIELDS, FIELDS, check_templates

# Name of the alert that a request adds.
FINISH_BY = "finish_by"
MAX_SECONDS = 3_155_760_000


R = Reference
# Armed at planning; those below when a run or task first starts.
AT_PLANNING = (R.RUN_QUEUED_AT, R.LOGICAL_DATE, R.FIXED_DATETIME)
AT_RUN_START = (R.RUN_STARTED_AT, R.AVERAGE_RUNTIME)
AT_TASK_START = (R.TASK_STARTED_AT,)
# For the whole backfill, armed at planning.
OF_BACKFILL = (R.BACKFILL_REQUESTED_AT,)
# Required arguments by reference.
ARGUMENTS: dict[Reference, tuple[str, ...]] = {
    R.FIXED_DATETIME: ("at",),
    R.AVERAGE_RUNTIME: ("last_n", "min_runs"),
    R.TASK_STARTED_AT: ("task",),
}


def check_handled(handled: Iterable[Reference], wanted: Iterable[Reference] = R) -> None:
    """Fail at import if a reference has no code that arms it. Raises ``NotImplementedError``."""
    if left := set(wanted) ^ set(handled):
        raise NotImplementedError(f"no code arms deadlines that count from {', '.join(sorted(left))}")


check_handled([*AT_PLANNING, *AT_RUN_START, *AT_TASK_START, *OF_BACKFILL])


class DeadlineAlert(Data):  # type: ignore[no-redef]  # the plugin takes the field kwargs for **kwargs
    """Each run, task or backfill must be done ``interval_seconds`` after its reference moment."""

    name: Name = Field(description="Unique in the pipeline")
    reference: Reference = Field(description="The moment the deadline counts from")
    interval_seconds: float = Field(
        ge=-MAX_SECONDS,
        le=MAX_SECONDS,
        allow_inf_nan=False,
        description="Added to the reference moment; negative for an early warning",
    )
    at: AwareDatetime | None = Field(None, description="FIXED_DATETIME: the moment")
    last_n: int | None = Field(None, ge=1, le=1000, description="AVERAGE_RUNTIME: number of last successes to average")
    min_runs: int | None = Field(
        None, ge=1, le=1000, description="AVERAGE_RUNTIME: with fewer successes the deadline is void"
    )
    task: str | None = Field(None, description="TASK_STARTED_AT: the task that must be done")
    callback: CallbackTarget | None = Field(None, description="What to call; a bare name means a function")
    kwargs: dict[str, JsonValue] = Field(
        default_factory=dict, description="Passed to the callback; texts may refer to the deadline, as in {run.id}"
    )
    at_most_once: bool = Field(False, description="Do not call again if the result of a call is unknown")
    fire_if_past: bool = Field(False, description="Fire even if the moment is past when the deadline is armed")
    fire_on_failure: bool = Field(False, description="Fire even if it failed or was cancelled before the moment")
    digest_seconds: float | None = Field(
        None, ge=1, le=86_400, description="Collect misses for this long into one event"
    )

    @model_validator(mode="after")
    def _consistent(self) -> DeadlineAlert:
        wanted = ARGUMENTS.get(self.reference, ())
        for name in ("at", "last_n", "min_runs", "task"):
            if (getattr(self, name) is None) == (name in wanted):
                needs = f"needs {' and '.join(wanted)}" if name in wanted else f"takes no {name!r}"
                raise ValueError(f"deadline {self.name!r}: the reference {self.reference} {needs}")
        if (self.min_runs or 0) > (self.last_n or 0):
            raise ValueError(f"deadline {self.name!r}: min_runs exceeds last_n, so it would never be armed")
        if self.of_backfill and self.digest_seconds is not None:
            raise ValueError(
                f"deadline {self.name!r} is for the whole backfill: remove the digest, which has nothing to collect"
            )
        try:
            check_templates(self.kwargs, BACKFILL_FIELDS if self.of_backfill else FIELDS)
        except ValueError as e:
            raise ValueError(f"deadline {self.name!r}: {e}") from e
        return self

    @property
    def of_backfill(self) -> bool:
        """Whether the deadline is for the whole backfill."""
        return self.reference == R.BACKFILL_REQUESTED_AT or self.name == FINISH_BY


def finish_by(at: datetime, callback: str | None = None) -> DeadlineAlert:
    """The alert a request adds for its own backfill: done by ``at``."""
    target = None if callback is None else FunctionCall(name=callback)
    return DeadlineAlert(name=FINISH_BY, reference=R.FIXED_DATETIME, interval_seconds=0, at=at, callback=target)
