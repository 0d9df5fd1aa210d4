"""The command ``retrofill``. Every failure is printed as one line and sets the exit status."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated

import typer

from retrofill.errors import InReview, Interrupted, NotConfigured, UserError, WrongUsage, first_line
from retrofill_core.startup import importing
from retrofill_tools.cli.options import words


@dataclass(frozen=True)
class Listed:
    """A command or a group of them, and where it is in this package: ``module:name``."""

    place: str
    about: str
    commands: dict[str, str] = field(default_factory=dict)


# In the order of the help.
COMMANDS = {
    "up": Listed("stack:up", "Start the embedded stack: Kafka, Postgres, Spark and the services."),
    "down": Listed("stack:down", "Stop the embedded stack. Its data is kept."),
    "status": Listed("stack:status", "Show the state of all parts, their addresses, and the seats of run-starters."),
    "logs": Listed("stack:logs", "Show the log of a part. For logs of attempts: retrofill runs logs."),
    "service": Listed("stack:service", "Run one more replica of a service in the foreground."),
    "open": Listed("stack:open_", "Open the console's page of a backfill, or of all, in a browser."),
    "console": Listed("stack:console", "Serve the console in the foreground, for a local or a remote installation."),
    "hosts": Listed("hosts:list_hosts", "List run-starters with their seats, and why drivers do not start."),
    "init": Listed(
        "installation:init", "Create the schema and roles in Postgres, and topics, users and ACLs in Kafka."
    ),
    "recover": Listed(
        "installation:recover", "Repair the state after a Postgres restore or failover that may have lost commits."
    ),
    "purge": Listed(
        "installation:purge", "Delete backfills that ended long ago, except runs that later backfills depend on."
    ),
    "config": Listed("installation:config", "Show all settings, with secrets masked."),
    "watch": Listed(
        "watching:watch_all", "Show active backfills, live attempts and hosts, live on a terminal; Ctrl-C ends it."
    ),
    "completion": Listed(
        "options:completion", "Print a script that completes commands, options, backfills and pipelines."
    ),
    "test": Listed(
        "trial:test",
        "Run a day of a pipeline on a local Spark, without servers, and show what it stages. Publishes nothing.",
    ),
    "pipelines": Listed(
        "pipelines:group",
        "Apply, list, show and delete pipelines.",
        {
            "apply": "Apply the pipelines of a Python file or module.",
            "list": "List the applied pipelines.",
            "show": "Show one pipeline: its schedule, tasks, deadlines and code.",
            "delete": "Delete a pipeline: no new backfill of it can be created.",
        },
    ),
    "tokens": Listed(
        "tokens:group",
        "Create, list and revoke tokens of the console's users.",
        {
            "create": "Create a user's token and print it once. Without a file, also print the line that the file needs.",
            "list": "List the users that have tokens, with their roles. Tokens themselves are not stored.",
            "revoke": "Revoke all tokens of a user. The console refuses them at once.",
        },
    ),
    "places": Listed(
        "places:group",
        "Release directories that belong to intervals.",
        {
            "release": "Let other intervals and pipelines publish to directories. Published output stays as it is.",
        },
    ),
    "pools": Listed(
        "hosts:pools",
        "List pools of drivers.",
        {
            "list": "List the pools that are served or used, with hosts, seats and versions.",
        },
    ),
    "backfill": Listed(
        "backfills:group",
        "Create, dry-run, list, show, watch, pause, resume, change, retry, cancel and undo backfills; diff, publish or "
        "discard what is in review.",
        {
            "create": "Request a backfill and wait for the reply.",
            "dry-run": "Show the runs that a request would create now. Publishes and writes nothing.",
            "list": "List backfills, newest first.",
            "show": "Show one backfill: counts, speed, failed runs with their errors, skipped intervals.",
            "watch": "Show progress until the backfill ends; exit status 1 unless it succeeded, 3 if it is in review.",
            "pause": "Start no new runs; runs in progress finish.",
            "resume": "Resume a paused backfill; one whose budget is used up needs a new budget (--budget none: no limits).",
            "diff": "Compare the staged output of a backfill in review with the published output; largest changes first.",
            "publish": "Publish the staged output of a backfill in review. Output whose target has changed is reviewed again.",
            "discard": "Cancel a backfill in review: its staged output is not published.",
            "cancel": "Cancel all runs that have not ended.",
            "change": "Change an active backfill. Options that you omit keep their values.",
            "retry": "Retry all failed runs. For an ended backfill, request its failed and canceled runs again.",
            "undo": "Restore what the runs of an ended backfill replaced, by a new backfill.",
        },
    ),
    "runs": Listed(
        "runs:group",
        "List, show, retry and cancel single runs, and read their logs.",
        {
            "list": "List the runs of a backfill, in the order of their intervals.",
            "cancel": "Cancel the named runs that have not ended. The backfill's other runs continue.",
            "retry": "Retry failed runs of an active backfill: all named runs, or none.",
            "show": "Show one run: its state, attempts, tasks and error.",
            "logs": "Print the log of an attempt, or of a run's last attempt, while it runs or afterwards.",
        },
    ),
    "intervals": Listed(
        "runs:intervals",
        "Show the history of a data interval.",
        {
            "show": "Show who processed an interval when, with which code, and what that published.",
        },
    ),
    "deadlines": Listed(
        "deadlines:group",
        "List and show deadlines, watch misses.",
        {
            "list": "List deadlines, latest first.",
            "show": "Show one deadline: what it is for, when it is due, and its outcome.",
            "watch": "Show misses, digests and recoveries as they are published, until Ctrl-C.",
        },
    ),
    "callbacks": Listed(
        "callbacks:group",
        "List, show and replay callbacks.",
        {
            "list": "List callbacks, newest first.",
            "show": "Show one callback: its target, arguments and outcome.",
            "replay": "Call failed callbacks again, starting at their first try.",
        },
    ),
    "dead-letters": Listed(
        "dead_letters:group",
        "List, replay and drop messages that could not be handled.",
        {
            "list": "List dead letters, newest first.",
            "replay": "Republish a dead letter unchanged to its original topic, and wait for the reply, if any.",
            "drop": "Delete dead letters: P:O and all before it in its partition, or all.",
        },
    ),
}


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
