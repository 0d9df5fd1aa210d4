"""Which message of an added partition is being tried while processes die, as the shard's row has it for the others.

Services of the version before go on against this schema: they do not know of the columns and try for ever.
"""

from pathlib import Path

from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    """Add to the tables."""
    for statement in Path(__file__).with_name("v0027_added_deaths.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
