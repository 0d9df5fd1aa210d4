"""Callbacks of failed runs and ended backfills, beside those of missed deadlines.

Services of the release before go on with this schema: the callbacks that they insert have none of
the columns that come, and an id that is a deadline's, which the foreign key no longer says.
"""

from pathlib import Path

from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Add the columns and the table."""
    for statement in Path(__file__).with_name("v0019_callbacks_of_runs.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
