"""The ``launch`` message, with which a host starts an attempt in a driver: runs, their intervals, the pipeline's definition."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, Mapping

from retrofill.protocol.table_output import TableOutput
from retrofill.sdk.names import DEFAULT_POOL, TriggerRule
from retrofill.sdk.texts import Table
from retrofill.states import AttemptMode


@dataclass(frozen=True)
class Interval:
    """The data interval ``[start, end)``, in the pipeline's time zone."""

    start: datetime
    end: datetime


def interval_of(launch: Launch, run: LaunchedRun | Piece) -> Interval:
    """The interval of a run, or of a piece as a whole, in the pipeline's time zone."""
    zone = zone_of(launch.pipeline.timezone)
    start, end = (zone or timezone(timedelta(seconds=offset)) for offset in run.utc_offsets)
    return Interval(run.interval_start.astimezone(start), run.interval_end.astimezone(end))


@lru_cache(maxsize=None)
def zone_of(name: str) -> tzinfo | None:
    """The time zone; ``None`` if this Python has none (before 3.9), or no data about it."""
    if name == "UTC":
        return timezone.utc
    try:
        from zoneinfo import ZoneInfo

        return ZoneInfo(name)
    except (ImportError, KeyError, OSError, ValueError):
        return None


def known(model: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given for the fields of a dataclass, with tuples for lists. A newer host may send more."""
    names = {each.name for each in fields(model)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items() if name in names}


@dataclass(frozen=True)
class Script:
    """A script or jar for spark-submit or, as ``script`` of a command, a program."""

    script: str
    main_class: str | None = None
    args: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    py_files: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    deploy_mode: str = "client"
    tables: tuple[Table, ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Script:
        values = known(cls, given)
        values["tables"] = tuple(Table(**known(Table, each)) for each in given.get("tables", ()))
        return cls(**values)


@dataclass(frozen=True)
class Sql:
    """Statements that run in the attempt's session. ``into``: the table for the rows of the last one."""

    file: str
    text: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    into: Table | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Sql:
        values = known(cls, given)
        if values.get("into") is not None:
            values["into"] = Table(**known(Table, values["into"]))
        return cls(**values)


@dataclass(frozen=True)
class Task:
    """One step of a run."""

    name: str
    kind: str = "python"
    after: tuple[str, ...] = ()
    trigger_rule: TriggerRule = TriggerRule.ALL_SUCCESS
    retries: int = 0
    retry_delay_seconds: float = 1.0
    timeout_seconds: float | None = None
    submit: Script | None = None
    sql: Sql | None = None
    sparse: bool = False
    writes_nothing: bool = False

    @property
    def needs_session(self) -> bool:
        """Whether it uses the attempt's session of Spark. A script has its own, unless it stages tables."""
        return self.submit is None or bool(self.submit.tables)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Task:
        values = known(cls, given)
        if values.get("submit") is not None:
            values["submit"] = Script.of(values["submit"])
        if values.get("sql") is not None:
            values["sql"] = Sql.of(values["sql"])
        if "trigger_rule" in values:
            values["trigger_rule"] = TriggerRule(values["trigger_rule"])
        return cls(**values)


@dataclass(frozen=True)
class Code:
    """Where the user's code is: in a file or module, and with ``sha256`` in that archive."""

    attribute: str
    file: str | None = None
    module: str | None = None
    sha256: str | None = None
    root: str | None = None


@dataclass(frozen=True)
class Definition:
    """A pipeline."""

    name: str
    tasks: tuple[Task, ...]
    code: Code
    pool: str = DEFAULT_POOL
    timezone: str = "UTC"
    spark_conf: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Definition:
        """From JSON data."""
        values = known(cls, given)
        values["tasks"] = tuple(map(Task.of, values["tasks"]))
        values["code"] = Code(**known(Code, values["code"]))
        return cls(**values)

    @property
    def needs_session(self) -> bool:
        """Whether a task uses the attempt's session of Spark."""
        return any(task.needs_session for task in self.tasks)


@dataclass(frozen=True)
class LaunchedRun:
    """One run of an attempt.

    ``attempt``: how often it has begun, this time included. ``publication``: from 1 on, what
    ``accepted_attempt`` staged (``outputs``) is only to be published. ``tries``: of its tasks, that
    timed out and ended their drivers. ``utc_offsets``: of the pipeline's time zone at both ends of
    the interval, in seconds, for a Python that does not know the zone; in the message only.
    ``restores``: the run that this one undoes, which published ``outputs``. ``bases``: the state of the
    outputs' places that a review has approved; empty: any. ``over_changes``: it has approved what others have changed.
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

    def as_json(self, zone: tzinfo) -> dict[str, Any]:
        """As part of the ``launch`` message. ``zone``: the pipeline's, which the driver's Python may not know."""
        moments = {"interval_start": self.interval_start, "interval_end": self.interval_end}
        offsets = [_offset(moment, zone) for moment in moments.values()]
        return {**vars(self), **{name: at.isoformat() for name, at in moments.items()}, "utc_offsets": offsets}

    @property
    def about(self) -> dict[str, Any]:
        """The fields that all reports on the run share."""
        return {"run_id": self.id, "attempt": self.attempt, "publication": self.publication}


def _offset(moment: datetime, zone: tzinfo) -> float:
    """Seconds from UTC to the zone's time."""
    offset = moment.astimezone(zone).utcoffset()
    return 0.0 if offset is None else offset.total_seconds()


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
