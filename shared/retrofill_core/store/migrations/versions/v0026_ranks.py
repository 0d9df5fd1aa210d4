"""Who gets a free seat: since when a shard waits for one, and an index of each backfill's newest attempt."""

from pathlib import Path

from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    """Add the column and the index."""
    for statement in Path(__file__).with_name("v0026_ranks.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
