"""Settings and read-only Postgres transactions for commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine

from retrofill.errors import UserError
from retrofill_core.contract.topics import CLI_CLIENT, OPERATOR
from retrofill_core.settings import Settings, WrongSetting, read_settings
from retrofill_core.store.engine import make_engine


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
