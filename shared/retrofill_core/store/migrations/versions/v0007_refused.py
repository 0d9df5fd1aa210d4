"""Dead letters that Kafka refuses are kept in a table of each service.

Services of the version before go on against this schema: they never write there.
"""

from pathlib import Path

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add to the tables."""
    for statement in Path(__file__).with_name("v0007_refused.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
