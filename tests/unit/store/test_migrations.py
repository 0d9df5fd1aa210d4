"""Migrations keep the previous release working: they only add, unless one declares that it removes
what no release needs any more.
"""

from __future__ import annotations

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from tests.support.migrations import VERSIONS, harm, is_contract

from retrofill_core.store.tables import REVISION

MIGRATIONS = sorted(VERSIONS.glob("v[0-9]*.py"))


def test_the_release_needs_the_newest_schema() -> None:
    config = Config()
    config.set_main_option("script_location", str(VERSIONS.parent))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_current_head() == REVISION
    # Waiting services compare revisions as strings.
    assert [script.revision for script in scripts.walk_revisions()] == sorted(
        (path.name[1:5] for path in MIGRATIONS), reverse=True
    )


def test_migrations_only_add() -> None:
    harmful = {path.stem: harm(path.with_suffix(".sql").read_text()) for path in MIGRATIONS[1:]}
    assert {name: found for name, found in harmful.items() if found and not is_contract(_code(name))} == {}


def _code(name: str) -> str:
    return (VERSIONS / f"{name}.py").read_text()


HARMFUL = {
    "a column is gone": ("ALTER TABLE retrofill.run DROP COLUMN error", "drops a column"),
    "a table is gone": ("DROP TABLE retrofill.run", "drops a table"),
    "a column has another name": ("ALTER TABLE retrofill.run RENAME COLUMN error TO failure", "renames"),
    "a table has another name": ("ALTER TABLE retrofill.run RENAME TO runs", "renames"),
    "a column is needed": ("ALTER TABLE retrofill.run ADD COLUMN code TEXT NOT NULL", "adds code, which is not null"),
    "the second column is needed": (
        "ALTER TABLE retrofill.run\n  ADD COLUMN a NUMERIC(10, 2) DEFAULT 0 NOT NULL,\n  ADD COLUMN b TEXT NOT NULL",
        "adds b, which is not null",
    ),
    "a column may be null no more": ("ALTER TABLE retrofill.run ALTER COLUMN host SET NOT NULL", "has a column not be"),
    "a column has another type": ("ALTER TABLE retrofill.run ALTER COLUMN host TYPE BIGINT", "changes a column's type"),
    "a default is gone": ("ALTER TABLE retrofill.run ALTER COLUMN attempt DROP DEFAULT", "drops a default"),
    "rows are gone": ("DELETE FROM retrofill.run", "deletes rows"),
    "small letters": ("alter table retrofill.run drop column error", "drops a column"),
}


@pytest.mark.parametrize(("sql", "fields"), HARMFUL.values(), ids=HARMFUL.keys())
def test_what_breaks_the_release_before_is_named(sql: str, fields: str) -> None:
    assert [
        found for found in harm(f"CREATE TABLE retrofill.other (id BIGINT);\n\n{sql};\n") if found.startswith(fields)
    ]


HARMLESS = {
    "a further column": "ALTER TABLE retrofill.run ADD COLUMN code TEXT",
    "one with a default": "ALTER TABLE retrofill.run ADD COLUMN follows BOOLEAN DEFAULT false NOT NULL",
    "what may be null": "ALTER TABLE retrofill.run ALTER COLUMN host DROP NOT NULL",
    "a table of its own": (
        "CREATE TABLE retrofill.mine (id BIGINT);\n\nALTER TABLE retrofill.mine ADD COLUMN code TEXT NOT NULL"
    ),
    "an index": "CREATE INDEX run_code_idx ON retrofill.run (code);\n\nDROP INDEX retrofill.run_old_idx",
}


@pytest.mark.parametrize("sql", HARMLESS.values(), ids=HARMLESS.keys())
def test_what_only_adds_is_let_through(sql: str) -> None:
    assert harm(f"{sql};\n") == []


def test_a_migration_that_takes_away_says_so() -> None:
    assert is_contract('revision = "0009"\ncontract = True\n')
    assert not any(is_contract(path.read_text()) for path in MIGRATIONS[:1])
