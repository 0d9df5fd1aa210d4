"""Reviews: a state of backfills, and when output was staged and approved."""

from pathlib import Path

from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    """Add the columns and the state."""
    for statement in Path(__file__).with_name("v0024_review.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
