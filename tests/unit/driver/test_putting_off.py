"""Accepted output fails only for a refusal for ever, and only when no former publisher can publish it any more."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException, PySparkException, UnsupportedOperationException
from tests.support.lake import launch

from retrofill.driver import publishing
from retrofill.driver.execute import Result
from retrofill.driver.publishing import publish_all
from retrofill.driver.session import Sessions
from retrofill.outputs.kept import AREA, NotKept
from retrofill.outputs.publication import Publication, PublishedAgain
from retrofill.outputs.tables import publication, turns
from retrofill.outputs.tables.group import Group
from retrofill.outputs.tables.protocol import Burned, Looked, NotPublished
from retrofill.outputs.tables.publication import Tables
from retrofill.outputs.tables.turns import NotNow, Patience
from retrofill.protocol.launch import Launch
from retrofill.protocol.table_output import TableOutput

TABLE = TableOutput("lake.t", "lake.s", "day", "date", "delta")


class OfSpark(PySparkException):
    """An error that a server has answered."""

    def __init__(self, name: str | None, state: str | None, message: str = "why") -> None:
        super().__init__(message)
        self._name, self._state = name, state

    def getCondition(self) -> str | None:
        return self._name

    def getErrorClass(self) -> str | None:
        return self._name

    def getSqlState(self) -> str | None:
        return self._state


class Analysis(OfSpark, AnalysisException):
    """Spark has refused the statement."""


class Unsupported(OfSpark, UnsupportedOperationException):
    """The table does not do that."""


class OfTests:
    """Sessions that record whose publications are ended."""

    shares_server = True

    def __init__(self) -> None:
        self.ended: list[tuple[int, ...]] = []
        self.silent: Exception | None = None

    def publisher(self) -> NoSpark:
        return NoSpark()

    def lost(self, _: BaseException) -> None:
        """It is not."""

    def end_publications(self, attempts: Iterable[int]) -> None:
        if self.silent is not None:
            raise self.silent
        self.ended.append(tuple(attempts))


class NoSpark:
    """A session in which all tables exist, until a statement is refused because the staged one does not."""

    staged = True
    catalog = property(lambda self: self)

    def table(self, _: str) -> NoSpark:
        return self

    def drop(self, *_: str) -> NoSpark:
        return self

    def where(self, _: str) -> NoSpark:
        return self

    def tableExists(self, name: str) -> bool:
        return self.staged or name != TABLE.staged


class OneTable:
    """A table whose commits raise what ``raising`` says."""

    fixed = False
    fenced = True

    def __init__(self, _: object, table: str) -> None:
        self.table = table

    def is_begun(self, _: Group) -> bool:
        return False

    def changed(self, _: Group) -> dict[int, Exception]:
        return {}

    def conflicts_always(self) -> bool:
        return False

    def groups(self, whole: Group) -> list[Group]:
        return [whole]

    def look(self, _: Group, *, again: bool) -> Looked:
        return Looked()

    def replace(self, _: object, group: Group) -> str:
        raise AssertionError(group)

    def burn(self, _: Group, why: str) -> Burned:
        return Burned(why, at_once=True)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> OfTests:
    monkeypatch.setattr(turns, "SECONDS", 0.0)
    monkeypatch.setattr(publication, "FORMATS", {"delta": OneTable})
    monkeypatch.setattr(publication, "drop", lambda *_: None)
    monkeypatch.setattr(publication, "turn", lambda _: nullcontext())
    return OfTests()


def raising(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> list[Exception]:
    """Tries of a table that raise these errors, the last one again and again. Returns those that were raised."""
    raised: list[Exception] = []

    def commit(*_: object) -> str:
        raised.append(errors[min(len(raised), len(errors) - 1)])
        raise raised[-1]

    def changed(*_: object) -> dict[int, Exception]:
        raised.append(errors[0])
        return {1: errors[0]}

    monkeypatch.setattr(OneTable, "replace", commit)
    if isinstance(errors[0], (PublishedAgain, NotKept)):
        monkeypatch.setattr(OneTable, "changed", changed)
    return raised


def publish(sessions: OfTests, *outputs: str, publishers: tuple[int, ...] = (), lost: Any = pytest.fail) -> Result:
    made = replace(launch(range(1, 2), 25, 1, len(publishers)), publishers=publishers)
    tables = Tables(made, cast(Sessions, sessions), lambda _: True, lost)
    ((_, result),) = publish_all(made, 20, [replace(made.runs[0], outputs=outputs)], tables)
    return result


FOR_EVER: list[Exception] = [
    Analysis("UNRESOLVED_COLUMN.WITH_SUGGESTION", "42703"),
    Analysis("TABLE_OR_VIEW_NOT_FOUND", "42P01"),
    Unsupported("DELTA_CANNOT_MODIFY_APPEND_ONLY", "42809"),
    OfSpark("DELTA_VIOLATE_CONSTRAINT_WITH_VALUES", "23001"),
    OfSpark("CAST_OVERFLOW_IN_TABLE_INSERT", "22003"),
    NotPublished("a file with other rows"),
    PublishedAgain("somebody else has changed it"),
    NotKept("nobody knows what was before"),
]
FOR_NOW: list[Exception] = [
    OfSpark("DELTA_CONCURRENT_APPEND", "2D521"),
    OfSpark("DELTA_CONCURRENT_DELETE_READ", "2D521"),
    OfSpark("DELTA_METADATA_CHANGED", "2D521"),
    OfSpark("DELTA_PROTOCOL_CHANGED", "2D521"),
    OfSpark("DELTA_CONCURRENT_TRANSACTION", "2D521"),
    OfSpark("INTERNAL_ERROR", "XX000"),
    OfSpark(None, None, "org.apache.iceberg.exceptions.CommitFailedException: conflict"),
    OfSpark(None, None, "org.apache.iceberg.exceptions.ValidationException: Found conflicting files"),
    OfSpark(None, None, "org.apache.iceberg.exceptions.ServiceUnavailableException: 503"),
    # The metastore is away, which Spark tells as a mistake in the statement.
    Analysis("_LEGACY_ERROR_TEMP_3065", None, "org.apache.thrift.transport.TTransportException"),
    Analysis(None, None, "HiveException: unable to instantiate the client"),
    OSError(errno.ESTALE, "stale"),
    ValueError("whatever else"),
]


@pytest.mark.parametrize("error", FOR_EVER, ids=lambda e: f"{type(e).__name__} {e}"[:60])
@pytest.mark.parametrize("publishers", [(), (20, 23)])
def test_a_refusal_for_ever_fails_the_run_once_former_publishers_have_ended(
    sessions: OfTests, monkeypatch: pytest.MonkeyPatch, error: Exception, publishers: tuple[int, ...]
) -> None:
    raised = raising(monkeypatch, error)
    result = publish(sessions, str(TABLE), publishers=publishers)
    assert (result.succeeded, result.put_off, len(raised), sessions.ended) == (False, False, 1, [publishers])


def test_staged_rows_that_are_gone_fail_the_run(sessions: OfTests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoSpark, "staged", False)
    raising(monkeypatch, FOR_EVER[1])
    result = publish(sessions, str(TABLE))
    assert (result.put_off, result.error and result.error.type) == (False, "StagedOutputGone")


@pytest.mark.parametrize("error", FOR_EVER[:1])
def test_it_is_put_off_if_nobody_knows_whether_they_have(
    sessions: OfTests, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    raising(monkeypatch, error)
    sessions.silent = OfSpark(None, None, "the server is busy")
    result = publish(sessions, str(TABLE), publishers=(20,))
    assert result.put_off and result.error is not None
    assert result.error.message.endswith("whether earlier publishers have ended is unknown: the server is busy")


@pytest.mark.parametrize("error", FOR_NOW, ids=lambda e: f"{type(e).__name__} {e}"[:60])
def test_what_may_pass_is_put_off_when_patience_is_used_up(
    sessions: OfTests, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(turns, "SECONDS", 0.3)
    monkeypatch.setattr(turns, "FIRST_PAUSE_SECONDS", 0.001)
    raised = raising(monkeypatch, error)
    result = publish(sessions, str(TABLE), publishers=(20,))
    assert (result.succeeded, result.put_off) == (False, True)
    assert result.error is not None and result.error.type == type(error).__name__
    # Its own operations are interrupted, and nobody else's.
    assert (len(raised) > 3, sessions.ended) == (True, [()])


def test_a_driver_that_cannot_end_its_own_tries_ends_itself(sessions: OfTests, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, FOR_NOW[0])
    sessions.silent, said = OfSpark(None, None, "no answer"), list[str]()
    publish(sessions, str(TABLE), lost=lambda why, _: said.append(why))
    assert said == ["Spark does not say whether a commit is still under way: no answer"]


def test_patience_that_is_used_up_allows_one_try_for_each_output_until_one_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "SECONDS", 0.05)
    monkeypatch.setattr(turns, "FIRST_PAUSE_SECONDS", 0.001)
    of, tries = Patience(), list[int]()

    def work(number: int) -> None:
        tries.append(number)
        if away:
            raise OSError("away")

    away = True
    for expected in (2, 1, 1):
        tries.clear()
        with pytest.raises(NotNow):
            of.retry("t", work, lambda _: False)
        assert len(tries) >= expected and (expected > 1 or len(tries) == 1)
    away = False
    of.retry("t", work, lambda _: False)
    away = True
    tries.clear()
    with pytest.raises(NotNow):
        of.retry("t", work, lambda _: False)
    assert len(tries) > 1


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOSPC, errno.EACCES, errno.ENOTCONN])
def test_a_file_system_that_is_away_puts_directories_off(
    sessions: OfTests, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    def away(_: Publication) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(publishing, "publish", away)
    result = publish(sessions, str(tmp_path / "day=1"), publishers=(20,))
    assert result.put_off and result.error is not None and os.strerror(number) in result.error.message
    # No table, no session.
    assert sessions.ended == []


@pytest.mark.parametrize("mounted", [True, False])
def test_staged_directories_that_are_gone_fail_only_if_their_disk_is_there(
    sessions: OfTests, tmp_path: Path, mounted: bool
) -> None:
    target = tmp_path / "mnt" / "day=1"
    (target.parent / AREA).mkdir(parents=True)
    if not mounted:
        shutil.rmtree(target.parent)
    result = publish(sessions, str(target))
    assert (result.succeeded, result.put_off) == (False, not mounted)


def test_old_launches_know_no_publishers() -> None:
    assert Launch.of({**vars_of(launch(range(1, 2), 25, 1, 0))}).publishers == ()


def vars_of(made: Launch) -> dict[str, Any]:
    """What a host of the last release sends."""
    return {
        "backfill_id": made.backfill_id,
        "attempt_id": made.attempt_id,
        "mode": "publish",
        "runs": [],
        "pipeline": {"name": "p", "tasks": [], "code": {"file": "/p.py", "attribute": "p"}},
        "lease_seconds": 60.0,
    }
