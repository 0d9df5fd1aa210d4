"""Attempts, and where the log of one is or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

from sqlalchemy import ColumnElement, Connection, Engine, and_, func, select

from retrofill.errors import UserError
from retrofill.masking import masked
from retrofill.states import LIVE, AttemptOutcome
from retrofill_core.attempt_logs import NEXT, Position, folder_of, read
from retrofill_core.settings import Settings
from retrofill_core.store.sql import database_now
from retrofill_core.store.tables import attempt, backfill, host, run
from retrofill_tools.client.connect import snapshot
from retrofill_tools.client.documents import names
from retrofill_tools.client.pipelines import StoredDefinition

CONNECT_SECONDS, READ_SECONDS = 5.0, 30.0


@dataclass(frozen=True)
class Attempt:
    """One driver's execution of one or several runs."""

    id: int
    backfill_id: str
    mode: str
    position: int
    runs: int
    state: str
    outcome: str | None
    host: str
    host_id: int | None
    claimed_at: datetime
    began_at: datetime | None
    ended_at: datetime | None
    spark_app_id: str | None
    spark_ui: str | None
    reason: str | None

    def has(self, position: int) -> bool:
        """Whether it was given the backfill's run at this position."""
        return self.position <= position < self.position + self.runs


@dataclass(frozen=True)
class LiveAttempt:
    """An attempt with its pipeline and the ``seconds`` it has been under way."""

    id: int
    backfill_id: str
    mode: str
    runs: int
    state: str
    outcome: str | None
    host: str
    host_id: int | None
    claimed_at: datetime
    began_at: datetime | None
    ended_at: datetime | None
    spark_app_id: str | None
    spark_ui: str | None
    reason: str | None
    pipeline: str
    first_interval: datetime | None
    timezone: str
    seconds: float


@dataclass(frozen=True)
class AttemptNotDone:
    """``first_interval`` and ``last_interval`` are logical dates, ``None`` if the runs were purged."""

    id: int
    ended_at: datetime
    outcome: str
    host: str
    runs: int
    reason: str | None
    first_interval: datetime | None
    last_interval: datetime | None


_REASON = attempt.c.error["message"].astext.label("reason")
_OF_ATTEMPT = [_REASON if name == "reason" else attempt.c[name] for name in names(Attempt)]
_OF_LIVE = [column for column in _OF_ATTEMPT if column.name != "position"]


def find_attempt(conn: Connection, id: int) -> Attempt | None:
    row = conn.execute(select(*_OF_ATTEMPT).where(attempt.c.id == id)).first()
    return None if row is None else Attempt(*row)


def find_attempts(conn: Connection, *conditions: ColumnElement[bool]) -> list[Attempt]:
    """Those that meet the conditions, in order."""
    found = select(*_OF_ATTEMPT).where(*conditions).order_by(attempt.c.id)
    return [Attempt(*row) for row in conn.execute(found)]


def attempts_not_done(conn: Connection, backfill_id: str, limit: int) -> list[AttemptNotDone]:
    """Attempts that did not come to their end, newest first."""
    first, last = run.alias("first_run"), run.alias("last_run")
    # Of a backfill that runs backwards, the last has the earlier date.
    of_first, of_last = (
        and_(each.c.backfill_id == attempt.c.backfill_id, each.c.position == position, each.c.superseded_by.is_(None))
        for each, position in ((first, attempt.c.position), (last, attempt.c.position + attempt.c.runs - 1))
    )
    dates = (first.c.interval_start, last.c.interval_start)
    found = (
        select(
            *(attempt.c.id, attempt.c.ended_at, attempt.c.outcome, attempt.c.host, attempt.c.runs, _REASON),
            func.least(*dates).label("first_interval"),
            func.greatest(*dates).label("last_interval"),
        )
        .select_from(attempt.outerjoin(first, of_first).outerjoin(last, of_last))
        .where(attempt.c.backfill_id == backfill_id, attempt.c.outcome != AttemptOutcome.DONE)
        .order_by(attempt.c.id.desc())
        .limit(limit)
    )
    return [AttemptNotDone(*row) for row in conn.execute(found)]


def live_attempts(conn: Connection, limit: int) -> list[LiveAttempt]:
    """Live attempts, the oldest first."""
    since = func.clock_timestamp() - func.coalesce(attempt.c.began_at, attempt.c.claimed_at)
    first = run.c.interval_start.label("first_interval")
    found = (
        select(*_OF_LIVE, backfill.c.pipeline, first, backfill.c.definition, since.label("since"))
        .join(backfill, backfill.c.id == attempt.c.backfill_id)
        .outerjoin(
            run,
            (run.c.backfill_id == attempt.c.backfill_id)
            & (run.c.position == attempt.c.position)
            & run.c.superseded_by.is_(None),
        )
        # Live ones have a slot, and only those are in its index.
        .where(attempt.c.slot.is_not(None))
        .order_by(attempt.c.id)
        .limit(limit)
    )
    return [
        LiveAttempt(*(*facts, StoredDefinition(definition).timezone, since.total_seconds()))
        for *facts, definition, since in conn.execute(found)
    ]


def _log_addresses(conn: Connection, of: Attempt) -> list[str]:
    """Where the log of an attempt may be: its host, then others on the same machine. Only live ones."""
    machine = of.host.rpartition("-")[0]
    found = (
        select(host.c.logs)
        .where(
            host.c.lease_until > func.clock_timestamp(),
            host.c.logs.is_not(None),
            # An attempt of a release without hosts has no id of one.
            (host.c.id == (of.host_id or 0)) | host.c.name.startswith(f"{machine}-", autoescape=True),
        )
        .order_by(host.c.id != (of.host_id or 0), host.c.id.desc())
    )
    # A run-starter is a host for each pool.
    return list(dict.fromkeys(conn.execute(found).scalars()))


class NoLog(UserError):
    """There is no log. ``may_come``: the attempt is live, and may still begin one."""

    def __init__(self, message: str, *, may_come: bool) -> None:
        super().__init__(message)
        self.may_come = may_come


def find_log(settings: Settings, engine: Engine, attempt: Attempt) -> Source:
    """The log of an attempt, wherever it is. Raises ``NoLog``."""
    return _Moving(partial(_find, settings, engine, attempt))


class _Moving:
    """A log that has another address once its host has restarted."""

    def __init__(self, find: Callable[[], Source]) -> None:
        self._find = find
        self._source = find()

    def read(self, at: Position) -> tuple[bytes, Position] | None:
        try:
            found = self._source.read(at)
        except OSError:
            found = None
        if found is not None:
            return found
        try:
            self._source = self._find()
        except NoLog as e:
            raise Unreachable(str(e)) from None
        return self._source.read(at)


def _find(settings: Settings, engine: Engine, attempt: Attempt) -> Source:
    with snapshot(engine) as conn:
        addresses = _log_addresses(conn, attempt)
        now = find_attempt(conn, attempt.id) or attempt
        age = None if now.ended_at is None else (database_now(conn) - now.ended_at).total_seconds()
    others = [OverHttp(address, attempt.id) for address in addresses]
    source, problem = first_with_log([OnDisk(folder_of(settings), attempt.id), *others])
    if source is None:
        why = why_no_log(now, age, problem, hosts=len(addresses), kept=settings.log_keep_seconds)
        raise NoLog(why, may_come=problem is None and now.state in LIVE)
    return source


def why_no_log(attempt: Attempt, age: float | None, problem: str | None, *, hosts: int, kept: float) -> str:
    """One line: why there is no log of an attempt that ended ``age`` seconds ago, and what to do."""
    id, host = attempt.id, attempt.host
    if problem is not None:
        return f"attempt {id} ran on {host}: {problem}; run this on that machine, or set RETROFILL_HTTP_HOST there"
    if age is None and attempt.began_at is None:
        return f"attempt {id} has printed nothing yet: its driver on {host} has not started (-f waits for it)"
    if attempt.began_at is None:
        return f"attempt {id} printed nothing: it ended before it began ({attempt.reason or attempt.outcome})"
    if age is not None and age > kept:
        keep = timedelta(seconds=round(kept))
        return f"the log of attempt {id} was removed: logs are kept for {keep} (RETROFILL_LOG_KEEP_SECONDS)"
    if hosts == 0:
        return (
            f"attempt {id} ran on {host}, which is gone: look for {id}.0.log in logs/attempts of its RETROFILL_HOME; "
            "logs outlive their hosts in a shared folder, RETROFILL_LOG_STORE"
        )
    return f"attempt {id} ran on {host}, which has no log of it: it was removed, or RETROFILL_LOG_STORE was changed"


class Source(Protocol):
    """One place where a log may be."""

    def read(self, at: Position) -> tuple[bytes, Position] | None:
        """What follows ``at``, and where that ends. ``None``: there is no log. Raises ``OSError``."""


class OnDisk:
    """The files of a folder that this machine has."""

    def __init__(self, folder: Path, attempt_id: int) -> None:
        self._folder = folder
        self._attempt_id = attempt_id

    def read(self, at: Position) -> tuple[bytes, Position] | None:
        return read(self._folder, self._attempt_id, at)


class Unreachable(OSError):
    """A run-starter does not answer. The message names its address without the secret."""


class OverHttp:
    """The page of a run-starter (``run_starter.executors.logs``)."""

    def __init__(self, address: str, attempt_id: int) -> None:
        # It imports a terminal's library, and most commands read no log.
        import httpx

        self._url = f"{address}{attempt_id}"
        # Not through a proxy of the environment: it is a host of ours.
        self._client = httpx.Client(timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS), trust_env=False)

    def read(self, at: Position) -> tuple[bytes, Position] | None:
        import httpx

        try:
            answer = self._client.get(self._url, params={"at": str(at)})
            if answer.status_code == httpx.codes.NOT_FOUND:
                return None
            answer.raise_for_status()
            return answer.content, Position.parse(answer.headers[NEXT])
        except (httpx.HTTPError, KeyError, ValueError) as e:
            where = httpx.URL(self._url)
            why = f"status {e.response.status_code}" if isinstance(e, httpx.HTTPStatusError) else str(e)
            # Not from ``e``: a traceback would show the secret in its address.
            raise Unreachable(f"http://{where.netloc.decode()} does not answer: {why}") from None


def first_with_log(sources: Sequence[Source]) -> tuple[Source | None, str | None]:
    """The first place that has the log, else why one of them could not be asked."""
    problem = None
    for source in sources:
        try:
            if source.read(Position()) is not None:
                return source, None
        except OSError as e:
            problem = problem or str(e)
    return None, problem


class Tail:
    """The lines of a log without their ends, with secrets masked, a part at a time."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._at = Position()
        self._rest = b""

    def more(self) -> list[str] | None:
        """The next complete lines; ``None``: nothing was added. Raises ``OSError``."""
        data, self._at = self._source.read(self._at) or (b"", self._at)
        *complete, self._rest = (self._rest + data).split(b"\n")
        return [_shown(line) for line in complete] if data else None

    def more_if_there(self, *, last: bool) -> list[str] | None:
        """``more``, but what fails is nothing for now: unless it is ``last``, the host will answer again."""
        try:
            return self.more()
        except OSError:
            if last:
                raise
            return None

    def rest(self) -> list[str]:
        """The last line, if it has no end."""
        return [_shown(self._rest)] if self._rest else []


def _shown(line: bytes) -> str:
    return masked(line.decode("utf-8", "replace"))


def lines(source: Source, goes_on: Callable[[], bool]) -> Iterator[str]:
    """The lines of a log, one after the other.

    At the end of what is there, ``goes_on`` waits and says whether more may come. Raises ``OSError``.
    """
    tail, last = Tail(source), False
    while True:
        found = tail.more_if_there(last=last)
        if found is not None:
            yield from found
        elif last:
            break
        else:
            # What was written before the end of the attempt was known is still read.
            last = not goes_on()
    yield from tail.rest()
