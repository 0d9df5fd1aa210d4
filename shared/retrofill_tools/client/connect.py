"""Settings and user of this process, read-only transactions of Postgres, and failures of servers in one line."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from confluent_kafka import KafkaException
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from retrofill.errors import UserError
from retrofill_core.bus.clients import explain
from retrofill_core.contract.topics import CLI_CLIENT, OPERATOR
from retrofill_core.settings import Settings, WrongSetting, read_settings
from retrofill_core.store.engine import make_engine

# Of what is recorded as a user's name.
MAX_NAME = 200


def load_settings() -> Settings:
    """The settings, with the operator's Kafka login. Raises ``UserError`` if one is invalid."""
    return checked_settings().acting_as(OPERATOR)


def checked_settings() -> Settings:
    """The settings without a specific Kafka login. Raises ``UserError`` if one is invalid."""
    try:
        return read_settings()
    except WrongSetting as e:
        raise UserError(str(e)) from e


@contextmanager
def reading_engine(settings: Settings) -> Iterator[Engine]:
    """An engine with one connection as the ``reader`` role."""
    engine = make_engine(settings.dsn_of("reader"), CLI_CLIENT, pool_size=1)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """A read-only transaction whose statements all see the same snapshot."""
    options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with engine.connect().execution_options(**options) as conn, conn.begin():
        yield conn


@contextmanager
def reading(settings: Settings) -> Iterator[Connection]:
    """One snapshot on its own connection."""
    with reading_engine(settings) as engine, snapshot(engine) as conn:
        yield conn


def local_user() -> str | None:
    """The name of the account, if it has one."""
    try:
        return getpass.getuser()[:MAX_NAME]
    except (KeyError, OSError, ImportError):  # an account without a name, as in many containers
        return None


def explain_postgres(error: Exception) -> str:
    """One line about a failed query, with what to check."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    line = " ".join(str(cause).split("\n")[0].split())
    if isinstance(cause, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName):
        return f"the database is not set up for Retrofill ({line}): is RETROFILL_POSTGRES_DSN right?"
    if isinstance(cause, psycopg.errors.UndefinedColumn):
        return f"the schema is older than this command ({line}): run 'retrofill init' of this release"
    if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError):
        return f"Postgres cannot be reached: {line}; check 'retrofill status' or RETROFILL_POSTGRES_DSN"
    return f"Postgres refused: {line}"


def explain_kafka(settings: Settings, error: KafkaException) -> str:
    """One line about a failed read or write, with what to check."""
    return f"Kafka cannot be used: {explain(settings, error)}"
