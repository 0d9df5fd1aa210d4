"""Each service's Postgres role can do what it owns and nothing else, tried table by table."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql
from tests.support.installation import Installation

from retrofill_core.contract.topics import SERVICES

# Section 6 of the design, by hand: I(nsert), U(pdate), D(elete), L(ock a row, through its column
# lock_only), S(upersede a run). "own" replaces the service's prefix in its bus tables.
MAY = """
table              planner  starter  watcher  runner   reader
pipeline           IU       L        -        -        -
pipeline_copy      ID       -        -        -        -
backfill           IU       L        L        -        -
backfill_request   I        -        -        -        -
backfill_command   I        -        -        -        -
backfill_interval  I        -        -        -        -
backfill_progress  IU       -        -        -        -
attempt            -        IU       -        -        -
host               -        IUD      -        -        -
seat               -        IUD      -        -        -
seat_wait          -        IUD      -        -        -
write_lock         -        IU       -        -        -
write_wait         -        IUD      -        -        -
run                ILS      U        L        -        -
run_cancel         I        -        -        -        -
task_run           -        IU       -        -        -
deadline           I        I        U        -        -
deadline_digest    -        -        IU       -        -
callback           I        IL       I        U        -
callback_run       -        I        -        -        -
table_place        -        IU       -        -        -
receiver           -        -        -        IUD      -
webhook_off        -        -        -        ID       -
installation       -        -        -        -        -
alembic_version    -        -        -        -        -
own_shard          U        U        U        U        -
own_shard_offset   IU       IU       IU       IU       -
own_outbox         ID       ID       ID       ID       -
own_outbox_refused I        I        I        I        -
own_relay          U        U        U        U        -
"""
COLUMNS = dict(zip(("planner", "starter", "watcher", "runner"), SERVICES, strict=True)) | {"reader": "reader"}
IDLE = "idle_in_transaction_session_timeout"
REFUSED = psycopg.errors.InsufficientPrivilege


def may(who: str) -> dict[str, str]:
    """A role's expected rights, by table name."""
    head, *lines = [line.split() for line in MAY.strip().splitlines()]
    column = head.index(next(short for short, name in COLUMNS.items() if name == who))
    own = who.replace("-", "_")
    return {line[0].replace("own_", f"{own}_"): line[column].replace("-", "") for line in lines}


def tables(installation: Installation) -> dict[str, list[str]]:
    """Every table with its columns."""
    rows = installation.query(
        "SELECT table_name, array_agg(column_name::text ORDER BY ordinal_position) AS columns"
        " FROM information_schema.columns WHERE table_schema = 'retrofill' GROUP BY table_name"
    )
    return {row["table_name"]: row["columns"] for row in rows}


def works(conn: psycopg.Connection, statement: str, *names: str) -> bool:
    """Whether the role has the privilege for the statement. Integrity errors count as allowed."""
    try:
        conn.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
    except (REFUSED, psycopg.errors.GeneratedAlways):
        return False
    except psycopg.IntegrityError:
        return True
    finally:
        conn.rollback()
    return True


def rights(conn: psycopg.Connection, table: str, columns: list[str]) -> str:
    """The operations on a table that the role is allowed."""
    plain = next(column for column in columns if column != "lock_only")
    tried = {
        "I": works(conn, "INSERT INTO {} DEFAULT VALUES", table),
        "U": works(conn, "UPDATE {} SET {} = NULL", table, plain),
        "D": works(conn, "DELETE FROM {}", table),
        "T": works(conn, "TRUNCATE {}", table),
        "A": works(conn, "ALTER TABLE {} ADD COLUMN more int", table),
    }
    if not tried["U"] and "lock_only" in columns:
        tried["L"] = works(conn, "SELECT 1 FROM {} FOR NO KEY UPDATE", table)
        one_by_one = {column for column in columns if works(conn, "UPDATE {} SET {} = NULL", table, column)}
        # Nothing but the columns that are granted.
        assert one_by_one <= {"lock_only", "superseded_by", "review"}
        tried["S"] = "superseded_by" in one_by_one
    return "".join(right for right, can in tried.items() if can)


@pytest.mark.parametrize("who", [*SERVICES, "reader"])
def test_a_role_changes_what_is_its_own_and_nothing_else(installation: Installation, who: str) -> None:
    known = tables(installation)
    expected = dict.fromkeys(known, "") | {name: given for name, given in may(who).items() if name in known}
    assert may(who).keys() - known.keys() <= {
        f"reader_{name}" for name in ("shard", "shard_offset", "outbox", "outbox_refused", "relay")
    }
    with psycopg.connect(installation.settings.dsn_of(who)) as conn:
        conn.execute("SET search_path = retrofill")
        conn.commit()
        found = {table: rights(conn, table, columns) for table, columns in known.items()}
        assert {table: given for table, given in found.items() if given != expected[table]} == {}
        for table in known:
            assert works(conn, "SELECT * FROM {}", table)


@pytest.mark.parametrize("who", [*SERVICES, "reader"])
def test_a_role_makes_nothing_and_becomes_nobody_else(installation: Installation, who: str) -> None:
    with psycopg.connect(installation.settings.dsn_of(who)) as conn:
        limits = [conn.execute(f"SHOW {name}".encode()).fetchone() for name in ("transaction_timeout", IDLE)]
        assert limits == [("2min",), ("5s",)]
        for statement in (
            "CREATE TABLE retrofill.mine (x int)",
            "CREATE TABLE public.mine (x int)",
            "CREATE SCHEMA mine",
            "CREATE ROLE mine",
            "SET ROLE retrofill",
            "GRANT retrofill_run_starter TO retrofill_reader",
            "COPY retrofill.run TO PROGRAM 'cat'",
            "SELECT retrofill.jump_to(1)",
        ):
            assert not works(conn, statement), statement


@pytest.mark.parametrize("who", [*SERVICES, "reader"])
def test_only_services_begin_a_generation_and_only_on_another_timeline(installation: Installation, who: str) -> None:
    refused = psycopg.errors.RaiseException if who in SERVICES else REFUSED
    with (
        psycopg.connect(installation.settings.dsn_of(who)) as conn,
        pytest.raises(refused, match="recorded timeline" if who in SERVICES else "permission denied"),
    ):
        conn.execute("SELECT retrofill.begin_generation(1)")
