"""The first schema, as plain SQL in the files beside this one."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make all tables, and the functions that need more than a statement."""
    for statement in Path(__file__).with_name("v0001_initial.sql").read_text().split(";\n"):
        if statement.strip():
            op.execute(statement)
    op.get_bind().exec_driver_sql(Path(__file__).with_name("v0001_timelines.sql").read_text().replace("%", "%%"))
