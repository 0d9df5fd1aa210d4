"""Suspects: when a run was last lost, and the server on which it is retried alone.

Services of the release before go on with this schema: they count every loss, as before.
"""

from pathlib import Path

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add to the tables."""
    for statement in Path(__file__).with_name("v0013_suspects.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
