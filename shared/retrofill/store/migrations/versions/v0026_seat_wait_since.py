"""Since when a shard waits for a seat."""

from pathlib import Path

from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    """Add the column."""
    op.execute(Path(__file__).with_name("v0026_seat_wait_since.sql").read_text())
