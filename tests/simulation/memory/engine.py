"""A fake ``Engine`` and ``Connection``, and the database behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import TextClause
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.exc import DBAPIError

from retrofill_core.store.engine import count_write
from retrofill_core.store.tables import metadata
from tests.simulation.memory import errors
from tests.simulation.memory.froms import Execution, Outcome
from tests.simulation.memory.rows import Row, Tx
from tests.simulation.memory.statements import environment, plan_of
from tests.simulation.memory.tables import MemoryTable
from tests.simulation.memory.texts import run_text
from tests.simulation.memory.turns import Turns

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
IDLE_SECONDS = 5.0
TRANSACTION_SECONDS = 120.0


class Unsupported(BaseException):
    """The engine does not know what the statement asks for."""


class Database:
    """The server.

    ``offset`` is how many seconds its clock is ahead of true time; ``lock_seconds`` is
    ``lock_timeout``.
    """

    def __init__(self, turns: Turns, lock_seconds: float | None = None) -> None:
        self.turns = turns
        self.lock_seconds = lock_seconds
        self.offset = 0.0
        # (true time, new offset) of each clock jump, starting with the initial state.
        self.jumps = [(0.0, 0.0)]
        # Whether the server is down. It keeps no sessions then.
        self.down = False
        self.tables = {table.name: MemoryTable(table, self) for table in metadata.sorted_tables}
        self.advisory: dict[tuple[int, int], Tx] = {}
        self.open: list[Tx] = []
        self.on_commit: list[Callable[[Tx], None]] = []
        self.on_wait: list[Callable[[Tx, Row], None]] = []
        self.listeners: list[Callable[[str, str], None]] = []
        self.statements = 0

    def now(self) -> datetime:
        """``clock_timestamp()``."""
        return EPOCH + timedelta(seconds=self.turns.now + self.offset)

    def jump(self, seconds: float) -> None:
        """Move the server's clock forward."""
        self.offset += seconds
        self.jumps.append((self.turns.now, self.offset))

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Committed rows of a table."""
        return [row.committed for row in self.tables[name].rows if row.committed is not None]

    def begin(self, who: str) -> Tx:
        tx = Tx(self, who, self.turns.now)
        self.open.append(tx)
        return tx

    def wait_for_end(self, tx: Tx) -> None:
        """Wait until any transaction ends. Raises if the server ended ``tx`` itself."""
        left = None
        if self.lock_seconds is not None:
            tx.lock_until = tx.lock_until or self.turns.now + self.lock_seconds
            left = tx.lock_until - self.turns.now
        woken = self.turns.wait(self, left)
        if tx.over:
            raise errors.disconnected("terminating connection due to administrator command")
        tx.last_active = self.turns.now
        if not woken and left is not None:
            raise errors.lock_timeout()

    def execute(self, tx: Tx, statement: Any, parameters: dict[str, Any] | None) -> Outcome:
        """Run one statement. An error fails the transaction."""
        self.check(tx)
        self.statements += 1
        tx.last_active = self.turns.now
        tx.lock_until = None
        try:
            if isinstance(statement, TextClause):
                return run_text(tx, statement.text, parameters or {})
            plan, values = plan_of(statement, parameters or {})
            return plan.run(environment(Execution(tx, self.tables, self.now), values))
        except NotImplementedError as e:
            # A service would take it for a failure of its own, and try again.
            raise Unsupported(str(e)) from e
        except DBAPIError:
            if not tx.over:
                tx.state = "failed"
            raise
        finally:
            tx.last_active = self.turns.now

    def check(self, tx: Tx) -> None:
        """Raises if ``tx`` cannot continue."""
        if not tx.over and self.turns.now - tx.began > TRANSACTION_SECONDS:
            self.terminate(tx)
            raise errors.transaction_timeout()
        if not tx.over and (self.down or self.turns.now - tx.last_active > IDLE_SECONDS):
            self.terminate(tx)
        if tx.over:
            raise errors.disconnected("terminating connection due to idle-in-transaction timeout")
        if tx.state == "failed":
            raise errors.failed_transaction()

    def commit(self, tx: Tx) -> None:
        """Commit. As on the server, a failed transaction is rolled back instead."""
        if tx.state == "failed":
            self.rollback(tx)
            return
        self.check(tx)
        tx.changes = [(t.name, row.committed, row.pending) for t, row in tx.written if row.writer is tx]
        for table, row in tx.written:
            row.committed = row.pending if row.writer is tx else row.committed
            row.writer = row.pending = None
            if row.committed is None:
                _forget(table, row)
        self._end(tx, "ended")
        for hook in self.on_commit:
            hook(tx)

    def notify(self, channel: str, payload: str) -> None:
        """Deliver a notification to all listeners."""
        for listener in list(self.listeners):
            listener(channel, payload)

    def rollback(self, tx: Tx) -> None:
        if not tx.over:
            self._undo(tx, 0)
            self._end(tx, "ended")

    def terminate(self, tx: Tx) -> None:
        """End a session; the client notices with its next statement."""
        if not tx.over:
            self._undo(tx, 0)
            self._end(tx, "terminated")

    def stop(self) -> None:
        """End all sessions and refuse new ones until ``down`` is false again."""
        self.down = True
        for tx in list(self.open):
            self.terminate(tx)

    def undo_to(self, tx: Tx, mark: int) -> None:
        """Roll back to a savepoint."""
        self.check_alive(tx)
        self._undo(tx, mark)
        tx.state = "active"

    def check_alive(self, tx: Tx) -> None:
        """Raises if the session was ended."""
        if tx.over:
            raise errors.disconnected("terminating connection due to idle-in-transaction timeout")

    def _undo(self, tx: Tx, mark: int) -> None:
        while len(tx.undo) > mark:
            tx.undo.pop()()
        for table, row in list(tx.written):
            if row.writer is not tx:
                del tx.written[table, row]
                if row.committed is None and row.writer is None:
                    _forget(table, row)

    def _end(self, tx: Tx, state: str) -> None:
        tx.state = state
        self.open.remove(tx)
        for row in tx.locked:
            row.locks.pop(tx, None)
        for key in tx.advisory:
            del self.advisory[key]
        self.turns.wake(self)


def _forget(table: MemoryTable, row: Row) -> None:
    if row in table.rows:
        table.rows.remove(row)


class MemoryResult(IteratorResult[Any]):
    """A result with ``rowcount``."""

    rowcount: int


@cache
def _metadata(names: tuple[str, ...]) -> SimpleResultMetaData:
    return SimpleResultMetaData(names)


def _result(outcome: Outcome) -> MemoryResult:
    result = MemoryResult(_metadata(tuple(outcome.names)), iter(outcome.rows))
    result.rowcount = outcome.rowcount
    return result


class MemoryConnection:
    """One session. Its first statement begins a transaction."""

    def __init__(self, database: Database, who: str) -> None:
        self._database = database
        self._who = who
        self.tx: Tx | None = None
        self.info: dict[str, Any] = {}
        # Facts about the transaction for the oracle, read at commit.
        self.notes: dict[str, Any] = {}

    def execute(self, statement: Any, parameters: dict[str, Any] | None = None) -> MemoryResult:
        """Run a statement, after a scheduler step."""
        self._database.turns.step("statement")
        count_write(self, statement)  # type: ignore[arg-type]  # has the connection's ``info``
        if self.tx is None:
            self.tx = self._database.begin(self._who)
            self.tx.notes = self.notes
        return _result(self._database.execute(self.tx, statement, parameters))

    @contextmanager
    def begin_nested(self) -> Iterator[None]:
        """A savepoint."""
        if self.tx is None:
            self.tx = self._database.begin(self._who)
            self.tx.notes = self.notes
        tx, mark = self.tx, len(self.tx.undo)
        try:
            yield
        except Exception:
            self._database.undo_to(tx, mark)
            raise

    def execution_options(self, *, isolation_level: str) -> MemoryConnection:
        """Of a single query, the transaction that it has here makes no difference."""
        assert isolation_level == "AUTOCOMMIT", isolation_level
        return self

    def commit(self) -> None:
        """Commit, with scheduler steps before and after."""
        self._database.turns.step("commit")
        if self.tx is not None:
            tx, self.tx = self.tx, None
            try:
                self._database.commit(tx)
            except DBAPIError:
                self._database.rollback(tx)
                raise
            self._database.turns.step("committed")

    def rollback(self) -> None:
        if self.tx is not None:
            tx, self.tx = self.tx, None
            self._database.rollback(tx)

    def abandon(self) -> None:
        """The client disappears silently; the server ends the session after the idle timeout."""
        if self.tx is not None:
            tx, database = self.tx, self._database
            database.turns.at(database.turns.now + IDLE_SECONDS, lambda: database.terminate(tx))

    def close(self) -> None:
        self.rollback()


class MemoryEngine:
    """A fake ``Engine``. If ``lingers()``, its sessions outlive the process for a while."""

    def __init__(self, database: Database, who: str, lingers: Callable[[], bool] = lambda: False) -> None:
        self._database = database
        self._who = who
        self._lingers = lingers

    @contextmanager
    def connect(self) -> Iterator[MemoryConnection]:
        """A session; uncommitted work is rolled back."""
        conn = MemoryConnection(self._database, self._who)
        try:
            yield conn
        except Exception:
            conn.rollback()
            raise
        except BaseException:
            # The machine failed: the server may keep the session until the timeout.
            if self._lingers():
                conn.abandon()
            else:
                conn.rollback()
            raise
        conn.close()

    @contextmanager
    def begin(self) -> Iterator[MemoryConnection]:
        """A session in a transaction that commits at the end of the block."""
        with self.connect() as conn:
            yield conn
            conn.commit()

    def dispose(self) -> None:
        """No-op: there is no connection pool."""
