"""Preparing Postgres: the schema, the roles, and the installation's fixed values. Idempotent."""

from __future__ import annotations

import uuid

import psycopg
import structlog
from sqlalchemy import Connection, Engine, insert, text, update
from sqlalchemy.exc import OperationalError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from retrofill.contract.topics import SERVICES
from retrofill.errors import first_line
from retrofill.settings import Settings
from retrofill.store import tables as t
from retrofill.store.engine import make_engine
from retrofill.store.history import read_history
from retrofill.store.installation import Installation, check_limits, read_installation, schema_version
from retrofill.store.migrations import upgrade
from retrofill.store.roles import READER, grant

log = structlog.get_logger(__name__)
LOCK_SECONDS = 1
TRIES = 60
# A lock was not to be had in time; a deadlock.
_IN_THE_WAY = ("55P03", "40P01")


class InstallationDiffers(Exception):
    """The settings contradict what was fixed when this database was initialised."""


def prepare_database(settings: Settings, revision: str = "head") -> Installation:
    """Migrate, make roles, and fix or check the installation. Idempotent. Raises ``InstallationDiffers``.

    Services may be at work meanwhile: what they lock is waited for a moment at a time, so that they are not held up.
    """
    engine = make_engine(settings.dsn_of("owner"), "retrofill-init")
    patience = Retrying(
        retry=retry_if_exception(_is_in_the_way),
        stop=stop_after_attempt(TRIES),
        wait=wait_exponential(0.1, max=2),
        reraise=True,
    )
    try:
        return patience(_prepare, engine, settings, revision)
    finally:
        engine.dispose()


def _prepare(engine: Engine, settings: Settings, revision: str) -> Installation:
    with engine.begin() as conn:
        # Whoever waits for a whole table holds up all who come after.
        conn.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
        # One that an older release's init meets is left to the newer one, with its rights: the two are at work together, or
        # somebody goes back to the older one.
        if (schema_version(conn) or "") <= t.REVISION:
            upgrade(conn, revision)
            grant(conn, _passwords(settings))
        found = _fix_installation(conn, settings)
        if (schema_version(conn) or "") >= t.REVISION:
            _record_history(conn)
        return found


def _is_in_the_way(error: BaseException) -> bool:
    """Whether it failed only for the work of others at this moment."""
    return isinstance(error, OperationalError) and getattr(error.orig, "sqlstate", None) in _IN_THE_WAY


def check_service_limits(settings: Settings) -> None:
    """Check it for every service, as it logs in; one whose login is not had here is left to its own start.

    Raises ``LimitsMissing``.
    """
    for name in SERVICES:
        engine = make_engine(settings.dsn_of(name), "retrofill-init", pool_size=1, limited=True)
        try:
            with engine.connect() as conn:
                check_limits(conn)
        except OperationalError as e:
            log.debug("limits_not_checked", service=name, error=first_line(e))
        finally:
            engine.dispose()


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


def _record_history(conn: Connection) -> None:
    """The first time, which Postgres this is; later only ``recover`` says that another one is to be worked on."""
    here = read_history(conn)
    if here is not None:
        values = {"system_identifier": here.system_identifier, "timeline": here.timeline}
        conn.execute(update(t.installation).where(t.installation.c.system_identifier.is_(None)).values(values))


def _passwords(settings: Settings) -> dict[str, str]:
    """Passwords by role, as the services' DSNs have them."""
    roles = {name: service.role for name, service in SERVICES.items()} | {"reader": READER}
    passwords = {}
    for name, dsn in settings.postgres_service_dsns.items():
        password = psycopg.conninfo.conninfo_to_dict(dsn.get_secret_value()).get("password")
        if name in roles and password:
            passwords[roles[name]] = str(password)
    return passwords
