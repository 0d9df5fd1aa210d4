"""A table belongs to the pipelines that publish to it."""

from pathlib import Path

from alembic import op

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    """Add which pipelines publish to which tables."""
    for statement in Path(__file__).with_name("v0031_table_places.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
