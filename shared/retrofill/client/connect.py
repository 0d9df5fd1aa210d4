"""What commands connect with: the settings, and reading transactions on Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine

from retrofill.contract.topics import CLI_CLIENT, OPERATOR
from retrofill.errors import UserError
from retrofill.reading_settings import WrongSetting, read_settings
from retrofill.settings import Settings
from retrofill.store.engine import make_engine


def load_settings() -> Settings:
    """The settings of the environment and of the stack in this folder. Raises ``UserError`` where one is wrong."""
    return checked_settings().acting_as(OPERATOR)


def checked_settings() -> Settings:
    """The same, as nobody in particular."""
    try:
        return read_settings()
    except WrongSetting as e:
        raise UserError(str(e)) from e


@contextmanager
def reading_engine(settings: Settings) -> Iterator[Engine]:
    """An engine of one connection as the reader, closed at the end."""
    engine = make_engine(settings.dsn_of("reader"), CLI_CLIENT, pool_size=1)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """A transaction that can write nothing and whose statements all see the same moment."""
    options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with engine.connect().execution_options(**options) as conn, conn.begin():
        yield conn


@contextmanager
def reading(settings: Settings) -> Iterator[Connection]:
    """One such transaction, and the connection's end."""
    with reading_engine(settings) as engine, snapshot(engine) as conn:
        yield conn
