"""How long the last attempts of a pipeline took, without reading the others.

Services of the release before go on with this schema: an index changes nothing for them.
"""

from pathlib import Path

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the index."""
    for statement in Path(__file__).with_name("v0014_durations.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
