"""Which message is being tried while processes die, so that one that ends its process each time is set aside.

Services of the version before go on against this schema: they do not know of the columns and try for ever.
"""

from pathlib import Path

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add to the tables."""
    for statement in Path(__file__).with_name("v0006_deaths.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
