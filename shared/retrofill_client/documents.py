"""The results of the client. ``document`` is all that is known, as the commands print it with ``--json``.

Moments are in UTC; ``timezone`` is the pipeline's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from retrofill_client.client import Backfills

Document = Mapping[str, Any]
T = TypeVar("T")


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _sure(text: str) -> datetime:
    return datetime.fromisoformat(text)


def each_of(make: Callable[[Document], T], documents: Sequence[Document]) -> list[T]:
    return [make(each) for each in documents]


@dataclass(frozen=True)
class Failure:
    """A run that failed for good. ``message``: its error in one line."""

    run_id: int
    interval_start: datetime
    message: str

    @classmethod
    def of(cls, document: Document) -> Failure:
        return cls(document["id"], _sure(document["interval_start"]), _line(document.get("error")))


def _line(error: Document | None) -> str:
    if error is None:
        return "its driver was lost too often"
    lines = str(error.get("message", "")).strip().splitlines()
    return ": ".join([str(error.get("type")), *lines[:1]])


@dataclass(frozen=True)
class Backfill:
    """A backfill as it was when it was read. Its methods are those of ``client.backfills``, for this id.

    ``state``: ``running``, ``paused``, ``in_review``, ``cancelling``, ``succeeded``, ``failed`` or ``cancelled``.
    ``by_state``: the number of its runs. ``held_back``: why runs do not start; ``failures``: the first failed runs; a list
    has neither.
    """

    id: str
    pipeline: str
    state: str
    runs: int
    by_state: Mapping[str, int]
    range_start: datetime
    range_end: datetime
    timezone: str
    max_active_runs: int
    triggered_by: str | None
    requested_at: datetime
    ended_at: datetime | None
    held_back: str | None
    failures: tuple[Failure, ...]
    document: Document = field(repr=False, compare=False)
    _backfills: Backfills = field(repr=False, compare=False)

    @classmethod
    def of(cls, document: Document, backfills: Backfills) -> Backfill:
        return cls(
            id=document["id"],
            pipeline=document["pipeline"],
            state=document["state"],
            runs=document["runs"],
            by_state=document["by_state"],
            range_start=_sure(document["range_start"]),
            range_end=_sure(document["range_end"]),
            timezone=document["timezone"],
            max_active_runs=document["max_active_runs"],
            triggered_by=document["triggered_by"],
            requested_at=_sure(document["requested_at"]),
            ended_at=_moment(document["ended_at"]),
            held_back=document.get("held_back"),
            failures=tuple(map(Failure.of, document.get("failed_runs", ()))),
            document=document,
            _backfills=backfills,
        )

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    @property
    def settled(self) -> bool:
        """Whether nothing happens any more unless somebody requests it: it has ended, or is in review."""
        return self.ended or self.state == "in_review"

    def refresh(self) -> Backfill:
        """The backfill as it is now."""
        return self._backfills.get(self.id)

    def wait(
        self, timeout: float | None = None, *, on_progress: Callable[[Backfill], object] | None = None
    ) -> Backfill:
        return self._backfills.wait(self.id, timeout, on_progress=on_progress)

    def pause(self) -> Backfill:
        return self._backfills.pause(self.id)

    def resume(self) -> Backfill:
        return self._backfills.resume(self.id)

    def cancel(self) -> Backfill:
        return self._backfills.cancel(self.id)

    def retry(self) -> Backfill:
        return self._backfills.retry(self.id)

    def diff(self) -> list[Change]:
        return self._backfills.diff(self.id)

    def publish(self, *, force: bool = False) -> Backfill:
        return self._backfills.publish(self.id, force=force)

    def discard(self) -> Backfill:
        return self._backfills.discard(self.id)

    def undo(self, *, review: bool = False, id: str | None = None) -> Backfill:
        return self._backfills.undo(self.id, review=review, new_id=id)


@dataclass(frozen=True)
class Plan:
    """What a request would do: how many ``runs`` it would create, and how many intervals it would skip, by reason.

    ``seconds`` and ``core_hours``: what they would take, from the pipeline's last attempts; ``None`` without a history.
    ``notes``: what one should know before.
    """

    pipeline: str
    runs: int
    skipped: Mapping[str, int]
    range_start: datetime
    range_end: datetime
    seconds: float | None
    core_hours: float | None
    notes: tuple[str, ...]
    document: Document = field(repr=False, compare=False)

    @classmethod
    def of(cls, document: Document) -> Plan:
        expected = document["expected"]
        return cls(
            pipeline=document["pipeline"],
            runs=document["runs"],
            skipped=document["skipped"],
            range_start=_sure(document["range_start"]),
            range_end=_sure(document["range_end"]),
            seconds=None if expected["estimate"] is None else expected["estimate"]["seconds"],
            core_hours=expected["core_hours"],
            notes=tuple(document["notes"]),
            document=document,
        )


@dataclass(frozen=True)
class Run:
    """A run: the interval ``[interval_start, interval_end)`` of a backfill. ``attempt``: how often it has begun.

    ``message``: why it failed, in one line; a list does not have it.
    """

    id: int
    interval_start: datetime
    interval_end: datetime
    state: str
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    message: str | None
    document: Document = field(repr=False, compare=False)

    @classmethod
    def of(cls, document: Document) -> Run:
        return cls(
            id=document["id"],
            interval_start=_sure(document["interval_start"]),
            interval_end=_sure(document["interval_end"]),
            state=document["state"],
            attempt=document["attempt"],
            started_at=_moment(document["started_at"]),
            finished_at=_moment(document["finished_at"]),
            message=_line(document["error"]) if document.get("error") else None,
            document=document,
        )


@dataclass(frozen=True)
class Pipeline:
    """An applied pipeline, with the names of its tasks."""

    name: str
    schedule: str
    timezone: str
    max_active_runs: int
    tasks: tuple[str, ...]
    applied_at: datetime
    document: Document = field(repr=False, compare=False)

    @classmethod
    def of(cls, document: Document) -> Pipeline:
        return cls(
            name=document["name"],
            schedule=document["schedule"],
            timezone=document["timezone"],
            max_active_runs=document["max_active_runs"],
            tasks=tuple(each if isinstance(each, str) else each["name"] for each in document["tasks"]),
            applied_at=_sure(document["applied_at"]),
            document=document,
        )


@dataclass(frozen=True)
class Change:
    """What publishing one output of a run would change, beside what is published now.

    ``rows``: how many more there would be. ``columns``: those with other figures. ``is_new``: nothing is published.
    ``changed_by_others``: somebody has changed what is published since it was approved.
    """

    run_id: int
    interval_start: datetime
    interval_end: datetime
    output: str
    rows: int
    columns: tuple[str, ...]
    is_new: bool
    changed_by_others: bool
    document: Document = field(repr=False, compare=False)

    @classmethod
    def of(cls, document: Document) -> Change:
        return cls(
            run_id=document["run_id"],
            interval_start=_sure(document["interval_start"]),
            interval_end=_sure(document["interval_end"]),
            output=document["output"],
            rows=document["row_change"],
            columns=tuple(document["changed_columns"]),
            is_new=document["published"] is None,
            changed_by_others=document["changed_by_others"],
            document=document,
        )
