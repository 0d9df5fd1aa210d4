"""A run that could not be published waits, and says why."""

from pathlib import Path

from alembic import op

revision = "0033"
down_revision = "0031"


def upgrade() -> None:
    """Add when an accepted run may have its next publisher, and why the last one did not publish it."""
    op.execute(Path(__file__).with_name("v0033_publishers.sql").read_text())
