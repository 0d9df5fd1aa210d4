"""Why a run's drivers were lost. Services of the version before go on against this schema, and record nothing there."""

from pathlib import Path

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add to the tables."""
    for statement in Path(__file__).with_name("v0005_losses.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
