"""The size in which a run may be tried next, after a range with it failed.

Services of the release before go on with this schema: they never form ranges.
"""

from pathlib import Path

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add to the tables."""
    for statement in Path(__file__).with_name("v0012_ranges.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
