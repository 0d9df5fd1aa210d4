"""Rules that hold in every session of a service, whatever the server's and the login's defaults are."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from tests.support.installation import Installation

from retrofill_core.bus.transaction import assert_epoch
from retrofill_core.contract.topics import RUN_STARTER
from retrofill_core.store.engine import make_engine


def test_a_session_that_was_moved_to_another_server_is_noticed_by_its_first_statement(
    installation: Installation,
) -> None:
    """As by a pooler: the session goes on, the timeline is another."""
    dsn = installation.settings.dsn_of("run-starter")
    checked: list[psycopg.Connection] = []
    engine = make_engine(dsn, "test", limited=True, check=checked.append)
    with engine.connect() as conn:
        assert_epoch(conn, RUN_STARTER, 0, 0)
    installation.query("UPDATE installation SET timeline = 7 RETURNING timeline")
    with engine.connect() as conn, pytest.raises(DBAPIError, match="on timeline 1, but 7 is recorded"):
        assert_epoch(conn, RUN_STARTER, 0, 0)
    assert len(checked) == 1
    with engine.connect():
        assert len(checked) == 2, "it connects again, and checks"
    engine.dispose()


@pytest.mark.parametrize(
    ("set_to", "used"),
    [("off", "on"), ("local", "on"), ("remote_write", "on"), ("on", "on"), ("remote_apply", "remote_apply")],
)
def test_a_service_waits_for_synchronous_standbys(installation: Installation, set_to: str, used: str) -> None:
    dsn = make_conninfo(installation.settings.dsn_of("run-starter"), options=f"-c synchronous_commit={set_to}")
    engine = make_engine(dsn, "test", limited=True)
    with engine.connect() as conn:
        assert conn.execute(text("SHOW synchronous_commit")).scalar_one() == used
    engine.dispose()
