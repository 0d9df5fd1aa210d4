"""The parts of a Connect session that are restored between two runs, by what its client requested."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect import proto

from retrofill.driver.session import CHECK_RETRIES, connect_apart
from retrofill.driver.session_state import CannotClear, Changes

TAG = "retrofill-attempt-1"


class Server:
    """A session and its server: settings only."""

    def __init__(self) -> None:
        self.settings = {"a": "fresh"}
        self.said: list[str] = []
        self.requests: list[Any] = []
        self.on_read: Callable[[], object] = lambda: None
        self.client, self.conf, self.catalog = self, self, self
        self._stub = self
        self._artifact_manager = self

    # The stub. Requests replace these, so they are no methods.
    def of_class(self) -> None:
        self.ExecutePlan = lambda request, **_: self.requests.append(request)
        self.Config = lambda request, **_: self.settings.update({p.key: p.value for p in request.operation.set.pairs})
        self.AnalyzePlan = lambda request, **_: None
        self.add_artifacts = lambda *paths, **_: self.requests.append(paths)

    @property
    def getAll(self) -> dict[str, str]:
        self.on_read()
        return dict(self.settings)

    def set(self, key: str, value: str) -> None:
        self.settings[key] = value
        self.said.append(f"set {key}={value}")

    def unset(self, key: str) -> None:
        del self.settings[key]
        self.said.append(f"unset {key}")

    def sql(self, query: str) -> Server:
        self.said.append(query)
        return self

    def collect(self) -> list[Any]:
        return []

    def currentCatalog(self) -> str:
        return "spark_catalog"

    def currentDatabase(self) -> str:
        return "default"

    addTag = removeTag = addJobTag = removeJobTag = interruptTag = cancelJobsWithTag = sql

    def clearTags(self) -> None:
        """There are none."""

    clearJobTags = clearTags

    @property
    def sparkContext(self) -> Server:
        return self


@pytest.fixture
def server() -> Server:
    made = Server()
    made.of_class()
    return made


@pytest.fixture
def changes(server: Server) -> Changes:
    return Changes(server, TAG, lambda: None, restores=True)


def sql(server: Server, query: str, **more: Any) -> Any:
    request = proto.ExecutePlanRequest()
    request.plan.command.sql_command.input.sql.query = query
    server.ExecutePlan(request, **more)
    return request


def configure(server: Server, key: str, value: str) -> None:
    request = proto.ConfigRequest()
    request.operation.set.pairs.add(key=key, value=value)
    server.Config(request)


RESTORED = "SHOW VIEWS IN global_temp"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1",
        "-- what it is for\nSELECT 1",
        "/* what it's for */ select * from t",
        "((SELECT begin, `declare` FROM t WHERE begin < 'BEGIN'))",
        "SELECT * FROM parquet.`/a/*/*` -- declare */",
        "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x",
        "FROM x INSERT INTO t SELECT *",
        "FROM t |> WHERE a > 1",
        "EXPLAIN CREATE TEMP FUNCTION f AS 'x'",
        "set",
        "SET -v;",
    ],
)
def test_after_statements_that_only_read_and_write_nothing_is_asked_or_restored(
    server: Server, changes: Changes, query: str
) -> None:
    assert list(sql(server, query).tags) == [TAG]
    changes.clear()
    assert server.said == []


@pytest.mark.parametrize(
    "query",
    [
        "SET a = 1",
        "USE other",
        "CACHE TABLE x AS SELECT 1",
        "CREATE TABLE t AS SELECT begin FROM x",
        "-- SELECT\nSET a = 1",
        "-- it goes on \\\nSELECT */\nSET a = 1",
        "/* a /* b */ SELECT */ SET a = 1",
        "/* SELECT",
        "selection",
        "",
    ],
)
def test_what_other_statements_may_have_changed_is_restored(server: Server, changes: Changes, query: str) -> None:
    sql(server, query)
    changes.clear()
    assert RESTORED in server.said


@pytest.mark.parametrize(
    "query",
    [
        "CREATE TEMPORARY FUNCTION f AS 'x'",
        "CREATE TEMP FUNCTION f() RETURNS INT RETURN 1",
        "create or  replace\ntemporary /* not -- */ function f as 'x'",
        "-- why\nDECLARE x = 1",
        "ADD JAR '/a.jar'",
        "/* mine */ add files /a /b",
        "ADD ARCHIVE /a.zip#there",
        "EXECUTE IMMEDIATE 'DECL' || 'ARE x'",
        "BEGIN\n  SELECT 1;\nEND",
        "a: BEGIN END",
        "`a b`: BEGIN END",
    ],
)
def test_after_statements_that_leave_what_nobody_can_undo_another_session_is_needed(
    server: Server, changes: Changes, query: str
) -> None:
    sql(server, query)
    with pytest.raises(CannotClear):
        changes.clear()


def test_a_statement_with_data_frames_as_arguments_is_read_too(server: Server, changes: Changes) -> None:
    request = proto.ExecutePlanRequest()
    request.plan.command.sql_command.input.with_relations.root.sql.query = "DECLARE x = (SELECT 1 FROM {df})"
    server.ExecutePlan(request)
    with pytest.raises(CannotClear):
        changes.clear()


def test_functions_are_dropped_whatever_their_names(server: Server, changes: Changes) -> None:
    request = proto.ExecutePlanRequest()
    request.plan.command.register_function.function_name = "a`b"
    server.ExecutePlan(request)
    changes.clear()
    assert server.said == ["DROP TEMPORARY FUNCTION IF EXISTS `a``b`"]


@pytest.mark.parametrize("kind", [{}, {"pyfile": True}, {"archive": True}, {"file": True}], ids=str)
def test_nobody_can_take_away_artifacts(server: Server, changes: Changes, kind: dict[str, bool]) -> None:
    server.add_artifacts("/a.jar", **kind)
    assert server.requests == [("/a.jar",)]
    with pytest.raises(CannotClear, match="addArtifacts"):
        changes.clear()


def test_artifacts_of_a_real_client_are_seen_before_they_are_sent(tmp_path: Path) -> None:
    session = connect_apart("sc://127.0.0.1:1", CHECK_RETRIES)
    sent: list[Any] = []
    session.client._artifact_manager._request_add_artifacts = lambda requests: sent.extend(requests)
    changes = Changes(session, TAG, lambda: None, restores=True)
    (tmp_path / "some.txt").touch()
    session.addArtifacts(str(tmp_path / "some.txt"), file=True)
    assert len(sent) == 1
    with pytest.raises(CannotClear, match="addArtifacts"):
        changes.clear()


@pytest.mark.parametrize(("op_type", "stays"), [("OP_TYPE_RELATION", False), ("OP_TYPE_COMMAND", True)])
def test_a_large_command_is_compressed_and_may_leave_anything(
    server: Server, changes: Changes, op_type: str, stays: bool
) -> None:
    request = proto.ExecutePlanRequest()
    request.plan.compressed_operation.op_type = getattr(proto.Plan.CompressedOperation, op_type)
    server.ExecutePlan(request)
    if stays:
        with pytest.raises(CannotClear):
            changes.clear()
    else:
        changes.clear()
        assert RESTORED in server.said


def test_tasks_that_change_settings_at_once_leave_them_as_they_were_before_both(
    server: Server, changes: Changes
) -> None:
    """The first one is still about to read them when the second one changes something."""
    reads, go = threading.Event(), threading.Event()

    def reading() -> None:
        server.on_read = lambda: None
        reads.set()
        go.wait(1)

    server.on_read = reading
    first = threading.Thread(target=configure, args=(server, "a", "first"))
    first.start()
    assert reads.wait(10)
    second = threading.Thread(target=configure, args=(server, "a", "second"))
    second.start()
    second.join(0.2)
    go.set()
    first.join(10)
    second.join(10)
    changes.clear()
    assert server.settings == {"a": "fresh"}
