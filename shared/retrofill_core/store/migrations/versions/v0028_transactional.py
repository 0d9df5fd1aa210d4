"""A relay has several transactional ids."""

from pathlib import Path

from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    """Add which of its ids a relay publishes with, and that older releases cannot take over meanwhile."""
    for statement in Path(__file__).with_name("v0028_transactional.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
