"""The command ``retrofill``. Every failure is printed as one line and sets the exit status."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import psycopg
import typer
from confluent_kafka import KafkaException
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from retrofill.bus.observability.diagnosis import explain
from retrofill.cli import (
    backfills,
    callbacks,
    completion,
    config,
    dead_letters,
    deadlines,
    hosts,
    init,
    overview,
    pipelines,
    pools,
    purge,
    recover,
    runs,
    stack,
)
from retrofill.client.connect import load_settings
from retrofill.errors import Interrupted, UserError, WrongUsage
from retrofill.settings import NotConfigured

REFUSED = 1
INTERRUPTED = 130
STATUS = {WrongUsage: 2, Interrupted: INTERRUPTED}

app = typer.Typer(
    name="retrofill",
    help="Run backfills of Spark pipelines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for group in (
    stack,
    hosts,
    init,
    recover,
    purge,
    config,
    pipelines,
    pools,
    backfills,
    runs,
    deadlines,
    callbacks,
    dead_letters,
    overview,
    completion,
):
    group.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"retrofill {version('retrofill')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Run backfills of Spark pipelines."""


def run() -> None:
    """Entry point of the console script."""
    try:
        app(prog_name="retrofill")
    except UserError as e:
        _fail(str(e), STATUS.get(type(e), REFUSED))
    except NotConfigured as e:
        _fail(str(e))
    except (SQLAlchemyError, psycopg.Error) as e:
        _fail(explain_postgres(e))
    except KafkaException as e:
        _fail(explain_kafka(e))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


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


def explain_kafka(error: KafkaException) -> str:
    """One line about a failed read or write, with what to check."""
    return f"Kafka cannot be used: {explain(load_settings(), error)}"


def _fail(line: str, status: int = REFUSED) -> None:
    sys.stderr.write(f"retrofill: {line}\n")
    sys.exit(status)
