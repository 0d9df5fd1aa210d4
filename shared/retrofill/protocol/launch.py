"""The ``launch`` message, with which a host starts an attempt in a driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Mapping

from retrofill.protocol.definition import Definition, known
from retrofill.protocol.table_output import TableOutput
from retrofill.states.attempt import AttemptMode


@dataclass(frozen=True)
class LaunchedRun:
    """One run of an attempt.

    ``attempt``: how often it has begun, this time included. ``publication``: from 1 on, what
    ``accepted_attempt`` staged (``outputs``) is only to be published. ``tries``: of its tasks, that
    timed out and ended their drivers. ``utc_offsets``: of the pipeline's time zone at both ends of
    the interval, in seconds, for a Python that does not know the zone. ``restores``: the run that
    this one undoes, which published ``outputs``. ``bases``: the state of the outputs' places that a
    review has approved; empty: any. ``over_changes``: it has approved what others have changed.
    ``review``: how often a review had to approve it again. ``over``: it has ended.
    """

    id: int
    attempt: int
    interval_start: datetime
    interval_end: datetime
    publication: int = 0
    accepted_attempt: int | None = None
    outputs: tuple[str, ...] = ()
    tries: Mapping[str, int] = field(default_factory=dict)
    utc_offsets: tuple[float, float] = (0.0, 0.0)
    restores: int | None = None
    review: int = 0
    over: bool = False
    bases: tuple[str, ...] = ()
    over_changes: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> LaunchedRun:
        """From JSON data."""
        values = known(cls, given)
        for name in ("interval_start", "interval_end"):
            values[name] = datetime.fromisoformat(values[name])
        values["outputs"] = tuple(values.get("outputs", ()))
        return cls(**values)

    @property
    def about(self) -> dict[str, Any]:
        """The fields that all reports on the run share."""
        return {"run_id": self.id, "attempt": self.attempt, "publication": self.publication}


@dataclass(frozen=True)
class Piece:
    """What user code processes in one go: one run, or all runs of a range."""

    runs: tuple[LaunchedRun, ...]

    @property
    def id(self) -> int:
        """That of the first run, which stands for the piece."""
        return self.runs[0].id

    @property
    def attempt(self) -> int:
        """How often the first run has begun, this time included."""
        return self.runs[0].attempt

    @property
    def interval_start(self) -> datetime:
        """The start of the first interval."""
        return min(run.interval_start for run in self.runs)

    @property
    def interval_end(self) -> datetime:
        """The end of the last interval."""
        return max(run.interval_end for run in self.runs)

    @property
    def utc_offsets(self) -> tuple[float, float]:
        """Of both ends of the whole interval."""
        first = min(self.runs, key=lambda run: run.interval_start)
        last = max(self.runs, key=lambda run: run.interval_end)
        return first.utc_offsets[0], last.utc_offsets[1]

    @property
    def is_range(self) -> bool:
        """Whether it is split if it fails."""
        return len(self.runs) > 1


@dataclass(frozen=True)
class Launch:
    """An attempt: the runs to execute, or whose output is to be published.

    ``trace``: trace context of the backfill's plan. ``lease_seconds``: length of the attempt's
    lease. ``earlier``: attempts whose Spark sessions must be closed first. ``installation``: id of
    the installation, of which several may share a Spark server. ``keep_replaced_days``: how long what
    is replaced is kept.
    ``unpublished``: attempts of which other runs may still publish rows from a table that they share with these.
    ``siblings``: of a publication, the other runs that the same attempts staged.
    ``publishers``: attempts that may have tried to publish the output of these runs before.
    ``review``: what it stages waits for a review.
    ``staged_tables``: the namespace where tables are staged, in the catalog of each target, unless it is the target's own.
    """

    backfill_id: str
    attempt_id: int
    mode: AttemptMode
    runs: tuple[LaunchedRun, ...]
    pipeline: Definition
    lease_seconds: float
    conf: Mapping[str, Any] = field(default_factory=dict)
    trace: str | None = None
    earlier: tuple[int, ...] = ()
    installation: str = ""
    keep_replaced_days: int = 0
    unpublished: tuple[int, ...] = ()
    siblings: tuple[LaunchedRun, ...] = ()
    publishers: tuple[int, ...] = ()
    review: bool = False
    staged_tables: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Launch:
        """From the host's message."""
        values = known(cls, given)
        values["mode"] = AttemptMode(values["mode"])
        values["runs"] = tuple(map(LaunchedRun.of, values["runs"]))
        values["siblings"] = tuple(map(LaunchedRun.of, values.get("siblings", ())))
        values["pipeline"] = Definition.of(values["pipeline"])
        return cls(**values)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The runs as they are processed: one by one, all of a range in one go, or what one attempt has staged."""
        if self.mode == AttemptMode.RANGE:
            return (Piece(self.runs),)
        pieces: dict[int, list[LaunchedRun]] = {}
        for run in self.runs:
            together = run.accepted_attempt if self.mode == AttemptMode.PUBLISH else None
            pieces.setdefault(run.id if together is None else together, []).append(run)
        return tuple(Piece(tuple(runs)) for runs in pieces.values())

    @property
    def undoes(self) -> bool:
        """Whether its runs restore what others replaced, instead of user code."""
        return self.runs[0].restores is not None

    @property
    def needs_session(self) -> bool:
        """Whether it uses a session of Spark, as scripts with their own do not."""
        if self.undoes:
            return any(TableOutput.of(output) for run in self.runs for output in run.outputs)
        return self.pipeline.needs_session

    @property
    def tag(self) -> str:
        """The tag of all Spark jobs of the attempt."""
        return f"retrofill-attempt-{self.attempt_id}"

    def tag_of(self, piece: Piece, task: str) -> str:
        """The tag of all Spark jobs of a task."""
        return f"{self.tag}-run-{piece.id}-{task}"
