"""Deadlines of tasks and backfills, digests and recoveries; callbacks that are webhooks or messages.

Every column has a default, so that services of the version before go on against this schema.
"""

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add to the tables."""
    for statement in Path(__file__).with_name("v0002_deadlines.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
