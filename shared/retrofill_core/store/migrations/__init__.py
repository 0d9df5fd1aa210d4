"""Schema migrations (Alembic), forward only, applied by ``retrofill init`` and ``retrofill up``."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, text

from retrofill_core.store.tables import SCHEMA


def upgrade(conn: Connection) -> None:
    """Migrate the schema in the caller's transaction. Idempotent."""
    # Imported here: it would be a tenth of every command's start.
    from alembic import command
    from alembic.config import Config

    # Concurrent migrations would both find the old version.
    conn.execute(text("SELECT pg_advisory_xact_lock(hashtext('retrofill.migrations'))"))
    conn.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = conn
    command.upgrade(config, "head")
