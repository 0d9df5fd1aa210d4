"""Indexes for very many deadlines and years of ended backfills, and how far purges are.

Services of the version before go on against this schema: each index that goes is the beginning of one that comes.
"""

from pathlib import Path

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add to the tables."""
    for statement in Path(__file__).with_name("v0009_scale.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
