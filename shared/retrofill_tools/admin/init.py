"""Creates what services need before they start: schema and roles in Postgres, topics, users and ACLs in Kafka. Idempotent."""

from __future__ import annotations

import uuid

import psycopg
from sqlalchemy import Connection, Engine, insert, text, update
from sqlalchemy.exc import OperationalError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill_core.contract.topics import SERVICES
from retrofill_core.settings import Settings
from retrofill_core.store import tables as t
from retrofill_core.store.engine import Installation, check_limits, make_engine, read_installation, schema_version
from retrofill_core.store.history import read_history
from retrofill_core.store.migrations import upgrade
from retrofill_core.store.roles import READER, grant
from retrofill_tools.admin.access import create_users
from retrofill_tools.admin.topics import create_topics

log = get_log(__name__)
LOCK_SECONDS = 1
TRIES = 60
# Lock timeout; deadlock.
_CONFLICTS = ("55P03", "40P01")
# The first that has transaction_timeout, which every service sets.
OLDEST_POSTGRES = 17


class PostgresTooOld(Exception):
    """The server is older than ``OLDEST_POSTGRES``."""


class InstallationDiffers(Exception):
    """The settings contradict the values fixed when this database was initialized."""


def initialize(settings: Settings) -> None:
    """Prepare Postgres and Kafka. Idempotent. Raises if either contradicts the settings."""
    prepare_database(settings)
    check_service_limits(settings)
    create_topics(settings)
    if settings.kafka_acls:
        create_users(settings)


def prepare_database(settings: Settings) -> Installation:
    """Migrate, create roles, and fix or check the installation. Idempotent.

    Raises ``InstallationDiffers`` and ``PostgresTooOld``.

    Services may be running: it waits for their locks only briefly and retries, so as not to block
    them.
    """
    engine = make_engine(settings.dsn_of("owner"), "retrofill-init")
    retrying = Retrying(
        retry=retry_if_exception(_is_conflict),
        stop=stop_after_attempt(TRIES),
        wait=wait_exponential(0.1, max=2),
        reraise=True,
    )
    try:
        return retrying(_prepare, engine, settings)
    finally:
        engine.dispose()


def _prepare(engine: Engine, settings: Settings) -> Installation:
    with engine.begin() as conn:
        _check_version(conn)
        # A session that waits for a table lock blocks every later one.
        conn.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
        # A schema newer than this release keeps its version and grants: both releases are running,
        # or this is a rollback.
        if (schema_version(conn) or "") <= t.REVISION:
            upgrade(conn)
            grant(conn, _passwords(settings))
        found = _fix_installation(conn, settings)
        _record_history(conn)
        return found


def _check_version(conn: Connection) -> None:
    driver = conn.connection.driver_connection
    assert driver is not None
    if (major := driver.info.server_version // 10_000) < OLDEST_POSTGRES:
        raise PostgresTooOld(f"Postgres is version {major}, but Retrofill needs {OLDEST_POSTGRES} or newer")


def _is_conflict(error: BaseException) -> bool:
    """Whether it failed on a lock held by another session."""
    return isinstance(error, OperationalError) and getattr(error.orig, "sqlstate", None) in _CONFLICTS


def check_service_limits(settings: Settings) -> None:
    """Check the session limits of every service's login. Raises ``LimitsMissing``.

    A service that cannot log in from here checks its limits when it starts.
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
            f"this database was initialized with {found.partitions} partitions and topic prefix {found.topic_prefix!r}, but "
            f"the settings have {settings.partitions} and {settings.topic_prefix!r}: set them back, or use a new database"
        )
    return found


def _record_history(conn: Connection) -> None:
    """Record which Postgres this is, the first time only. Later, only ``recover`` changes it."""
    here = read_history(conn)
    if here is not None:
        values = {"system_identifier": here.system_identifier, "timeline": here.timeline}
        conn.execute(update(t.installation).where(t.installation.c.system_identifier.is_(None)).values(values))


def _passwords(settings: Settings) -> dict[str, str]:
    """Passwords by role, from the services' DSNs."""
    roles = {name: service.role for name, service in SERVICES.items()} | {"reader": READER}
    passwords = {}
    for name, dsn in settings.postgres_service_dsns.items():
        password = psycopg.conninfo.conninfo_to_dict(dsn.get_secret_value()).get("password")
        if name in roles and password:
            passwords[roles[name]] = str(password)
    return passwords
