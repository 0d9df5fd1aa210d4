"""The code of a run: which archive its attempt uses, and whether the backfill follows what is applied later.

Services of the version before go on against this schema: their drivers import the code from where it lies.
"""

from pathlib import Path

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add to the tables."""
    for statement in Path(__file__).with_name("v0004_code.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
