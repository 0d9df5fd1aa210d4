"""When the present execution of a run times out.

Services of the release before go on with this schema: runs that they begin do not time out.
"""

from pathlib import Path

from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Add the column."""
    for statement in Path(__file__).with_name("v0017_timeouts.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
