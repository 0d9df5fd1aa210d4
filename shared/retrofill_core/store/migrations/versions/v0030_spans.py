"""An index of the intervals of finished runs, which finds those that overlap others."""

from pathlib import Path

from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    """Add the index."""
    for statement in Path(__file__).with_name("v0030_spans.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
