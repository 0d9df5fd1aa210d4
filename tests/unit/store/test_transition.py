"""A transition's statement depends on its structure alone; every value is a parameter."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, func, null, text
from sqlalchemy.dialects.postgresql import psycopg
from tests.support.offline import acting_as

from retrofill_core.domain.callback import MACHINE as CALLBACK
from retrofill_core.domain.run import MACHINE, RunState
from retrofill_core.store.tables import callback, run
from retrofill_core.store.transition import FromNow, IfNull, Plus, transition

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROW = {"id": 1, "attempt_id": 2}


class Recording:
    """Records what it executes; every row lands."""

    def __init__(self):
        self.executed = []

    def execute(self, statement, parameters):
        self.executed.append((statement, parameters))
        return [(id,) for id in parameters.get("given_id", ())]


def sent(to="running", rows=(ROW,), values=None, **more):
    """The statement and the parameters of a transition of runs, guarded by attempt."""
    conn = Recording()
    transition(acting_as(Connection, conn), MACHINE, run, to, rows, guard=["attempt_id"], values=values, **more)
    ((statement, parameters),) = conn.executed
    return statement, parameters


def sql(statement):
    return " ".join(str(statement.compile(dialect=psycopg.dialect())).split())


def test_rows_are_arrays_and_states_are_constants():
    rows = [{**ROW, "publication": 3}, {"id": 4, "attempt_id": 5, "publication": None}]
    statement, parameters = sent("starting", rows, {"code_sha256": "h"}, from_states=["queued"])
    assert sql(statement) == (
        "UPDATE retrofill.run SET state='starting', publication=given.publication, code_sha256=%(new_code_sha256)s::VARCHAR "
        "FROM unnest(%(given_id)s::BIGINT[], %(given_attempt_id)s::BIGINT[], %(given_publication)s::INTEGER[]) "
        "AS given(id, attempt_id, publication) "
        "WHERE retrofill.run.id = given.id AND retrofill.run.attempt_id = given.attempt_id "
        "AND retrofill.run.state = 'queued' RETURNING given.id, given.attempt_id"
    )
    assert parameters == {
        "given_id": [1, 4],
        "given_attempt_id": [2, 5],
        "given_publication": [3, None],
        "new_code_sha256": "h",
    }


@pytest.mark.parametrize(
    ("column", "value", "expected", "parameter"),
    [
        ("attempt", Plus(1), "(retrofill.run.attempt + %(new_attempt)s::INTEGER)", 1),
        ("losses", Plus({"a": 1}), "(retrofill.run.losses || %(new_losses)s::JSONB)", {"a": 1}),
        (
            "started_at",
            IfNull(NOW),
            "coalesce(retrofill.run.started_at, %(new_started_at)s::TIMESTAMP WITH TIME ZONE)",
            NOW,
        ),
        ("finished_at", FromNow(), "(clock_timestamp() + %(new_finished_at)s)", timedelta()),
        ("finished_at", FromNow(timedelta(1)), "(clock_timestamp() + %(new_finished_at)s)", timedelta(1)),
        ("publication", None, "%(new_publication)s::INTEGER", None),
    ],
)
def test_what_is_computed_has_its_value_as_a_parameter(column, value, expected, parameter):
    statement, parameters = sent(values={column: value})
    assert f"{column}={expected}" in sql(statement)
    assert parameters[f"new_{column}"] == parameter


def test_a_statement_is_built_once_for_all_values():
    first, _ = sent(values={"attempt": Plus(1), "code_sha256": "a"})
    again, _ = sent(rows=[{"id": 7, "attempt_id": 8}, ROW], values={"attempt": Plus(2), "code_sha256": None})
    assert again is first


@pytest.mark.parametrize(
    "other",
    [
        {"to": "failed"},
        {"from_states": ["starting"]},
        {"values": {"attempt": 1}},
        {"values": {"attempt": IfNull(1)}},
        {"values": {"publication": Plus(1)}},
        {"rows": [{**ROW, "publication": 1}]},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_structure_is_another_statement(other):
    one = {"to": "succeeded", "values": {"attempt": Plus(1)}}
    assert sent(**{**one, **other})[0] is not sent(**one)[0]


def test_another_table_is_another_statement():
    conn = Recording()
    transition(
        acting_as(Connection, conn),
        CALLBACK,
        callback,
        "running",
        [{"deadline_id": 1}],
        values={"lease_until": FromNow()},
    )
    assert sql(conn.executed[0][0]).startswith("UPDATE retrofill.callback SET state='running', lease_until=")


@pytest.mark.parametrize(
    "value", [func.clock_timestamp(), run.c.attempt + 1, run.c.attempt, null(), text("1")], ids=lambda value: str(value)
)
def test_an_expression_is_refused_because_its_values_would_be_kept(value):
    with pytest.raises(TypeError, match="run: an SQL expression among attempt; use a Computed"):
        sent(values={"attempt": value})


def test_only_edges_of_the_machine():
    assert "retrofill.run.state IN ('running', 'starting')" in sql(sent("queued")[0])
    conn = Recording()
    with pytest.raises(ValueError, match="no edge"):
        transition(acting_as(Connection, conn), MACHINE, run, RunState.RUNNING, [], from_states=["failed"])
    assert transition(acting_as(Connection, conn), MACHINE, run, RunState.RUNNING, [], from_states=["starting"]) == []
    assert conn.executed == []
