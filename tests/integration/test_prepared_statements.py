"""Statements stay prepared on a connection, whatever becomes of its transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError
from tests.support.installation import Installation

from retrofill_core.store.engine import make_engine

# psycopg prepares a statement at its sixth execution.
ENOUGH = 6
PREPARED = text("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%wanted%'")


@pytest.fixture
def conn(installation: Installation) -> Iterator[Connection]:
    with make_engine(installation.settings.dsn_of("owner"), "test").connect() as made:
        yield made


def execute(conn: Connection) -> None:
    for n in range(ENOUGH):
        assert conn.execute(text("SELECT CAST(:n AS int) AS wanted"), {"n": n}).scalar_one() == n


def test_a_rollback_keeps_prepared_statements(conn: Connection) -> None:
    execute(conn)
    assert conn.execute(PREPARED).scalar_one() == 1
    conn.rollback()
    assert conn.execute(PREPARED).scalar_one() == 1
    execute(conn)
    assert conn.execute(PREPARED).scalar_one() == 1, "it was not prepared again under another name"


def test_a_rollback_undoes_what_was_written(conn: Connection) -> None:
    conn.execute(text("CREATE TEMPORARY TABLE written (n int)"))
    conn.rollback()
    assert conn.execute(text("SELECT to_regclass('written')")).scalar_one() is None


def test_a_connection_goes_on_after_a_statement_that_failed(conn: Connection) -> None:
    execute(conn)
    with pytest.raises(ProgrammingError):
        conn.execute(text("SELECT nothing"))
    conn.rollback()
    execute(conn)
