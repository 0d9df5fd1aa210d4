"""Attempts as rows of their own, which take over slots, leases and hosts from the runs.

The release before cannot work with this schema: stop its services first, when no run is live.
"""

from pathlib import Path

from alembic import op

revision = "0011"
down_revision = "0010"
contract = True


def upgrade() -> None:
    """Add the table of attempts, and drop what it replaces."""
    for statement in Path(__file__).with_name("v0011_attempts.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
