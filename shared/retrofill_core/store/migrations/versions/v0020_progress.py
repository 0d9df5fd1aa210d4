"""Progress of backfills that was announced, their budgets, and what Spark used for attempts.

Services of the release before go on with this schema: they announce no progress and know no budget.
"""

from pathlib import Path

from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    """Add to the tables."""
    for statement in Path(__file__).with_name("v0020_progress.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
