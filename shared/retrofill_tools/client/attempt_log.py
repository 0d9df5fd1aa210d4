"""Where the log of an attempt is, or why there is none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Engine, RowMapping

from retrofill.errors import UserError
from retrofill.states.attempt import LIVE
from retrofill_core.attempt_logs.files import Position, folder_of
from retrofill_core.settings import Settings
from retrofill_core.store.clock import database_now
from retrofill_tools.client import read_runs
from retrofill_tools.client.connect import snapshot
from retrofill_tools.client.logs import OnDisk, OverHttp, Source, Unreachable, find


class NoLog(UserError):
    """There is no log. ``may_come``: the attempt is live, and may still begin one."""

    def __init__(self, message: str, *, may_come: bool) -> None:
        super().__init__(message)
        self.may_come = may_come


def find_log(settings: Settings, engine: Engine, attempt: RowMapping) -> Source:
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


def _find(settings: Settings, engine: Engine, attempt: RowMapping) -> Source:
    with snapshot(engine) as conn:
        addresses = read_runs.log_addresses(conn, attempt)
        now = read_runs.one_attempt(conn, attempt["id"]) or attempt
        age = None if now["ended_at"] is None else (database_now(conn) - now["ended_at"]).total_seconds()
    others = [OverHttp(address, attempt["id"]) for address in addresses]
    source, problem = find([OnDisk(folder_of(settings), attempt["id"]), *others])
    if source is None:
        why = why_no_log(dict(now), age, problem, hosts=len(addresses), kept=settings.log_keep_seconds)
        raise NoLog(why, may_come=problem is None and now["state"] in LIVE)
    return source


def why_no_log(attempt: dict[str, Any], age: float | None, problem: str | None, *, hosts: int, kept: float) -> str:
    """One line: why there is no log of an attempt that ended ``age`` seconds ago, and what to do."""
    id, host = attempt["id"], attempt["host"]
    if problem is not None:
        return f"attempt {id} ran on {host}: {problem}; run this on that machine, or set RETROFILL_HTTP_HOST there"
    if age is None and attempt["began_at"] is None:
        return f"attempt {id} has printed nothing yet: its driver on {host} has not begun (-f waits for it)"
    if attempt["began_at"] is None:
        return f"attempt {id} printed nothing: it ended before it began ({attempt['reason'] or attempt['outcome']})"
    if age is not None and age > kept:
        keep = timedelta(seconds=round(kept))
        return f"the log of attempt {id} was removed: logs are kept for {keep} (RETROFILL_LOG_KEEP_SECONDS)"
    if hosts == 0:
        return (
            f"attempt {id} ran on {host}, which is gone: look for {id}.0.log in logs/attempts of its RETROFILL_HOME; "
            "logs outlive their hosts in a shared folder, RETROFILL_LOG_STORE"
        )
    return f"attempt {id} ran on {host}, which has no log of it: it was removed, or RETROFILL_LOG_STORE was changed"
