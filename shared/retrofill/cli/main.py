"""The command ``retrofill``. Every failure is printed as one line and sets the exit status."""

from __future__ import annotations

import io
import os
import sys
from importlib.metadata import version
from typing import Annotated

import psycopg
import typer
from confluent_kafka import KafkaException
from sqlalchemy.exc import SQLAlchemyError

from retrofill.cli import (
    backfills,
    callbacks,
    completion,
    config,
    console,
    dead_letters,
    deadlines,
    hosts,
    init,
    intervals,
    overview,
    pipelines,
    places,
    pools,
    purge,
    recover,
    runs,
    stack,
)
from retrofill.client.connect import load_settings
from retrofill.client.failures import explain_kafka, explain_postgres
from retrofill.errors import Interrupted, UserError, WrongUsage, first_line
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
    console,
    hosts,
    init,
    recover,
    purge,
    config,
    pipelines,
    places,
    pools,
    backfills,
    runs,
    intervals,
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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What a terminal cannot show is no error.
            stream.reconfigure(errors="backslashreplace")
    try:
        _run()
    except UserError as e:
        _fail(str(e), STATUS.get(type(e), REFUSED))
    except NotConfigured as e:
        _fail(str(e))
    except (SQLAlchemyError, psycopg.Error) as e:
        _fail(explain_postgres(e))
    except KafkaException as e:
        _fail(explain_kafka(load_settings(), e))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Whoever reads it has seen enough.
        sys.exit(REFUSED)
    except OSError as e:
        _fail(first_line(e))


def _run() -> None:
    """Run the command, and write all that it printed. Raises ``OSError`` if that cannot be written."""
    try:
        app(prog_name="retrofill")
    finally:
        try:
            # There is none if whoever started this closed it.
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:
            # Python would try again when it exits, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise


def _fail(line: str, status: int = REFUSED) -> None:
    sys.stderr.write(f"retrofill: {line}\n")
    sys.exit(status)
