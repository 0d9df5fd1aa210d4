"""What each run has published: the history of an interval."""

from pathlib import Path

from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    """Add the column."""
    for statement in Path(__file__).with_name("v0023_published.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
