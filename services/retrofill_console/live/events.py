"""Events as viewers get them: small, and those of many runs only counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retrofill_core.contract.topics import Topic
from retrofill_core.domain.run import RunState
from retrofill_tools.client.documents import encoded

# What viewers are shown at once; the dead letters' bodies are not ours.
TOPICS = (
    Topic.BACKFILL_EVENTS,
    Topic.RUN_EVENTS,
    Topic.PIPELINE_EVENTS,
    Topic.DEADLINE_MISSED,
    Topic.CALLBACK_EVENTS,
    Topic.DEAD_LETTERS,
)
# The state of a run after an event. That of a lost attempt says it itself.
RUN_STATES = {
    "RunStarted": RunState.RUNNING,
    "RunHeldForReview": RunState.STAGED,
    "RunPublishing": RunState.PUBLISHING,
    "RunSucceeded": RunState.SUCCEEDED,
    "RunFailed": RunState.FAILED,
    "RunSplit": RunState.QUEUED,
    "RunCancelled": RunState.CANCELLED,
}
MAX_TEXT = 300
# What server-sent events are.
STREAM = "text/event-stream"
OBJECTS = ("runs", "runs_by_state")
DROPPED = ("version", "in_reply_to", "code_sha256")


@dataclass(frozen=True)
class Event:
    """A message, and its place: the number of its partition among all that are read, and its offset."""

    place: int
    offset: int
    topic: Topic
    body: Mapping[str, Any]

    @property
    def of_run(self) -> bool:
        return self.topic == Topic.RUN_EVENTS

    @property
    def backfill_id(self) -> str | None:
        found = self.body.get("backfill_id")
        return found if isinstance(found, str) else None


def shortened(topic: Topic, body: Mapping[str, Any]) -> dict[str, Any]:
    """The message without what pages do not need: tracebacks, paths, long lists."""
    found = {name: value for name, value in body.items() if name not in DROPPED and (_fits(value) or name in OBJECTS)}
    state = body.get("state") if body.get("type") == "RunAttemptLost" else RUN_STATES.get(str(body.get("type")))
    return {"topic": topic, **found, **({} if state is None else {"run_state": state})}


def _fits(value: Any) -> bool:
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= MAX_TEXT)


@dataclass
class Batch:
    """Events that are sent together; ``after`` is the place behind them, as an id."""

    events: Sequence[Event]
    after: str
    _encoded: dict[str | None, bytes] = field(default_factory=dict)

    def sent_to(self, backfill: str | None) -> bytes:
        """What viewers of a backfill, or of none, get. Made once for all of them."""
        if backfill not in self._encoded:
            self._encoded[backfill] = message("changes", _document(self.events, backfill), self.after)
        return self._encoded[backfill]


def _document(events: Sequence[Event], backfill: str | None) -> dict[str, Any]:
    shown = [each.body for each in events if not each.of_run or each.backfill_id == backfill]
    return {"events": shown, "moved": Counter(each.backfill_id for each in events if each.of_run and each.backfill_id)}


def message(event: str, document: Any, id: str | None = None) -> bytes:
    """One server-sent event. JSON has no line ends outside of texts, and escapes those in them."""
    head = b"" if id is None else b"id: " + id.encode() + b"\n"
    return head + b"event: " + event.encode() + b"\ndata: " + encoded(document) + b"\n\n"
