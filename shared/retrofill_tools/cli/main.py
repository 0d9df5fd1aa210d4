"""The command ``retrofill``. Every failure is printed as one line and sets the exit status."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated

import typer

from retrofill.errors import Interrupted, NotConfigured, UserError, WrongUsage, first_line

REFUSED = 1
INTERRUPTED = 130
STATUS = {WrongUsage: 2, Interrupted: INTERRUPTED}

# Where each command or group is in this package, in the order of the help.
COMMANDS = {
    **{name: f"stack:{name}" for name in ("up", "down", "status", "logs", "service", "console")},
    "hosts": "hosts:list_hosts",
    **{name: f"installation:{name}" for name in ("init", "recover")},
    "purge": "purge:purge",
    "config": "installation:config",
    "pipelines": "pipelines:group",
    "places": "places:group",
    "pools": "hosts:pools",
    "backfill": "backfills:group",
    "runs": "runs:group",
    "intervals": "runs:intervals",
    "deadlines": "deadlines:group",
    "callbacks": "callbacks:group",
    "dead-letters": "dead_letters:group",
    "watch": "watching:watch_all",
    "completion": "options:completion",
}


def command_line(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command that these arguments need: the imports of the others take longer than most commands.

    All of them, unless the first argument is a command's name or ``--version``.
    """
    app = typer.Typer(
        name="retrofill",
        help="Run backfills of Spark pipelines.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(options)
    for name in _needed(arguments):
        module, _, attribute = COMMANDS[name].partition(":")
        found = getattr(import_module(f"retrofill_tools.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found)
        else:
            app.command(name)(found)
    return app


def _needed(arguments: Sequence[str]) -> Sequence[str]:
    if list(arguments) == ["--version"]:
        return ()
    return [arguments[0]] if arguments and arguments[0] in COMMANDS else list(COMMANDS)


def _print_version(wanted: bool) -> None:
    if wanted:
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
        # The shell's questions come without arguments.
        command_line(sys.argv[1:])(prog_name="retrofill")
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
