"""Which Postgres the installation was last at work on: its system identifier and timeline, by which a fail-over is noticed.

Services of the version before go on against this schema: they never read it.
"""

from pathlib import Path

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add to the tables."""
    for statement in Path(__file__).with_name("v0010_history.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
