"""Retries and changes of active backfills, and backfills of single dates.

Services of the release before go on with this schema: they refuse requests that only have the hull
of their intervals in common with an active backfill, and apply no changed batch size.
"""

from pathlib import Path

from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Add to the tables."""
    for statement in Path(__file__).with_name("v0018_commands.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
