"""Staged output: what an accepted attempt is to publish, and who publishes it.

Services of the version before go on against this schema: nothing of theirs enters ``publishing``.
"""

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add to the tables."""
    for statement in Path(__file__).with_name("v0003_publishing.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
