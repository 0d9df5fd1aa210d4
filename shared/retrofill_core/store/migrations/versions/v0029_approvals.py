"""A review may be followed by another one, of what was changed meanwhile."""

from pathlib import Path

from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    """Add how often a backfill was approved, and for which review each run's output waits."""
    for statement in Path(__file__).with_name("v0029_approvals.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
