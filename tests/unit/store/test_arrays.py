"""Array parameters, and states as constants: what is sent with each execution and what is not."""

import pytest
from sqlalchemy import BigInteger, Text, select
from sqlalchemy.dialects.postgresql import psycopg

from retrofill_core.domain.run import LIVE, RunState
from retrofill_core.store.sql import Arrays, constant, in_state, none_of, one_of
from retrofill_core.store.tables import run


def sql(clause):
    return " ".join(str(clause.compile(dialect=psycopg.dialect())).split())


def test_a_table_of_arrays_has_one_parameter_per_column():
    given = Arrays("given", id=BigInteger, name=Text)
    assert sql(select(given.c.name).where(given.c.id > 1).select_from(given.table)) == (
        "SELECT given.name FROM unnest(%(given_id)s::BIGINT[], %(given_name)s::TEXT[]) AS given(id, name) "
        "WHERE given.id > %(id_1)s::BIGINT"
    )
    assert given.values(name=("a", "b"), id=iter([1, 2])) == {"given_id": [1, 2], "given_name": ["a", "b"]}


def test_rows_can_be_numbered():
    given = Arrays("given", number="no", id=BigInteger)
    assert "unnest(%(given_id)s::BIGINT[]) WITH ORDINALITY AS given(id, no)" in sql(select(given.c.no))
    assert given.values(id=[]) == {"given_id": []}


@pytest.mark.parametrize("columns", [{}, {"id": [1]}, {"id": [1], "name": ["a"], "more": [2]}])
def test_the_values_are_those_of_the_columns(columns):
    with pytest.raises(TypeError, match="the columns are id, name"):
        Arrays("given", id=BigInteger, name=Text).values(**columns)


def test_elements_of_an_array():
    assert sql(one_of(run.c.id, "ids")) == "retrofill.run.id = any(%(ids)s::BIGINT[])"
    assert sql(none_of(run.c.backfill_id, "backfills")) == "retrofill.run.backfill_id != all(%(backfills)s::TEXT[])"


def test_states_are_constants():
    assert sql(in_state(run, RunState.QUEUED)) == "retrofill.run.state = 'queued'"
    assert sql(in_state(run, *LIVE)) == "retrofill.run.state IN ('starting', 'running', 'publishing')"


@pytest.mark.parametrize("name", ["", "two words", "o'clock", "1st"])
def test_a_constant_is_one_word(name):
    with pytest.raises(ValueError, match="is not one word"):
        constant(name)
