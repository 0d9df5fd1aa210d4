"""What must exist in Postgres before a service starts: the schema, the roles, and what was fixed at init."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import psycopg
from sqlalchemy import Connection, insert, select

from retrofill.bus.topics import SERVICES
from retrofill.settings import Settings
from retrofill.store import tables as t
from retrofill.store.engine import make_engine
from retrofill.store.migrations import upgrade
from retrofill.store.roles import READER, grant


class InstallationDiffers(Exception):
    """The settings contradict what was fixed when this database was initialised."""


@dataclass(frozen=True)
class Installation:
    """What was fixed at init."""

    id: str
    topic_prefix: str
    partitions: int


def prepare_database(settings: Settings) -> Installation:
    """Migrate, make roles, and fix or check the installation. Idempotent. Raises ``InstallationDiffers``."""
    engine = make_engine(settings.dsn_of("owner"), "retrofill-init")
    try:
        with engine.begin() as conn:
            upgrade(conn)
            grant(conn, _passwords(settings))
            return _fix_installation(conn, settings)
    finally:
        engine.dispose()


def read_installation(conn: Connection) -> Installation | None:
    """What was fixed at init, or ``None`` before it."""
    row = conn.execute(select(t.installation)).mappings().first()
    return None if row is None else Installation(row["id"], row["topic_prefix"], row["partitions"])


def _fix_installation(conn: Connection, settings: Settings) -> Installation:
    found = read_installation(conn)
    if found is None:
        found = Installation(str(uuid.uuid4()), settings.topic_prefix, settings.partitions)
        conn.execute(
            insert(t.installation).values(id=found.id, topic_prefix=found.topic_prefix, partitions=found.partitions)
        )
        for own in t.SERVICE_TABLES.values():
            conn.execute(insert(own.relay).values(only=True))
            conn.execute(insert(own.shard), [{"partition": p} for p in range(found.partitions)])
    if (found.topic_prefix, found.partitions) != (settings.topic_prefix, settings.partitions):
        raise InstallationDiffers(
            f"this database was initialised with {found.partitions} partitions and topic prefix {found.topic_prefix!r}, "
            f"the settings say {settings.partitions} and {settings.topic_prefix!r}: set them back, or use a new database"
        )
    return found


def _passwords(settings: Settings) -> dict[str, str]:
    """Passwords by role, as the services' DSNs have them."""
    roles = {name: service.role for name, service in SERVICES.items()} | {"reader": READER}
    passwords = {}
    for name, dsn in settings.postgres_service_dsns.items():
        password = psycopg.conninfo.conninfo_to_dict(dsn.get_secret_value()).get("password")
        if name in roles and password:
            passwords[roles[name]] = str(password)
    return passwords
