"""Undo: which backfill and run one undoes, and by which run one was undone."""

from pathlib import Path

from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    """Add the columns."""
    for statement in Path(__file__).with_name("v0025_undo.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
