"""The command ``retrofill``. Every failure is printed as one line and sets the exit status."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated

import typer

from retrofill.errors import InReview, Interrupted, NotConfigured, UserError, WrongUsage, first_line
from retrofill_core.startup import importing
from retrofill_tools.cli.commands import COMMANDS
from retrofill_tools.cli.options import words

REFUSED = 1
INTERRUPTED = 130
STATUS = {WrongUsage: 2, InReview: 3, Interrupted: INTERRUPTED}


def command_line(words: Sequence[str] | None = None) -> typer.Typer:
    """All commands, or those that these words need: a module's imports take longer than most commands.

    Where the words name no command, whatever is printed lists commands: it gets their names and first sentences.
    """
    app = typer.Typer(
        name="retrofill",
        help="Run backfills of Spark pipelines.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(options)
    if words is None:
        for name in COMMANDS:
            _load(app, name)
        return app
    found = COMMANDS.get(words[0]) if words else None
    if found is None:
        _list(app, {name: each.about for name, each in COMMANDS.items()})
    elif found.commands and words[1:2] not in [[name] for name in found.commands]:
        group = typer.Typer(name=words[0], help=found.about, no_args_is_help=True)
        _list(group, found.commands)
        app.add_typer(group)
    else:
        _load(app, words[0])
    return app


def _load(app: typer.Typer, name: str) -> None:
    module, _, attribute = COMMANDS[name].place.partition(":")
    found = getattr(import_module(f"retrofill_tools.cli.{module}"), attribute)
    if isinstance(found, typer.Typer):
        app.add_typer(found)
    else:
        app.command(name)(found)


def _list(app: typer.Typer, commands: Mapping[str, str]) -> None:
    for name, about in commands.items():
        app.command(name, help=about)(_listed)


def _listed() -> None:
    """A command of which only the name is needed."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"retrofill {version('retrofill')}")
        raise typer.Exit


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
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Whoever reads it has seen enough.
        sys.exit(REFUSED)
    except OSError as e:
        _fail(first_line(e))
    except Exception as e:
        line = _of_a_server(e)
        if line is None:
            raise
        _fail(line)


def _of_a_server(error: Exception) -> str | None:
    """The line for a failure of Postgres or Kafka. Imported here, as most commands succeed."""
    import psycopg
    from confluent_kafka import KafkaException
    from sqlalchemy.exc import SQLAlchemyError

    from retrofill_tools.client.connect import explain_kafka, explain_postgres, load_settings

    if isinstance(error, SQLAlchemyError | psycopg.Error):
        return explain_postgres(error)
    return explain_kafka(load_settings(), error) if isinstance(error, KafkaException) else None


def _run() -> None:
    """Run the command, and write all that it printed. Raises ``OSError`` if that cannot be written."""
    try:
        with importing():
            app = command_line(words())
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
