"""Pools: a run-starter is one host for each pool that it serves, and shards wait for a pool's seats.

No release has had the table of those who wait, so its key may change.
"""

from pathlib import Path

from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Add the columns, and the pool to the key of those who wait."""
    for statement in Path(__file__).with_name("v0022_pools.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
