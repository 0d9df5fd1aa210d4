"""Cancels of single runs, and the request to end an attempt for their sake.

Services of the release before go on with this schema: they cancel whole backfills only.
"""

from pathlib import Path

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Add to the tables."""
    for statement in Path(__file__).with_name("v0015_run_cancels.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
