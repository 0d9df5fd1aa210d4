"""Where the logs of attempts are, and which Spark application an attempt used."""

from pathlib import Path

from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Add the columns."""
    for statement in Path(__file__).with_name("v0021_seeing.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
