"""The length of an attempt's lease, failures counted at a resume, and an index for those that wait for a slot.

Services of the version before go on against this schema: they fill neither column. A backfill that one of them resumes may be
paused again for the failure that it was paused for; resume it once more.
"""

from pathlib import Path

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add to the tables."""
    for statement in Path(__file__).with_name("v0008_leases.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
