"""Hosts and their seats, so that a backfill uses the drivers of all replicas.

Services of the release before go on with this schema: their attempts have no seat.
"""

from pathlib import Path

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Add the tables."""
    for statement in Path(__file__).with_name("v0016_hosts.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
