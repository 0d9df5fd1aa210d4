"""``up``, ``down``, ``status`` and ``logs`` of the embedded stack, and ``service`` and ``console`` in the foreground."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections import deque
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer
from rich.console import Console
from rich.table import Table

from retrofill.errors import UserError, WrongUsage
from retrofill.masking import masked_remote
from retrofill_core.contract.topics import SERVICES
from retrofill_core.startup import command_of
from retrofill_tools.cli import hosts
from retrofill_tools.cli.asking import Yes, confirm
from retrofill_tools.cli.options import AsJson, backfill_ids
from retrofill_tools.cli.output import print_json, print_text, warn
from retrofill_tools.client.connect import checked_settings
from retrofill_tools.client.hosts import unserved

if TYPE_CHECKING:
    from retrofill_tools.stack.stack import Stack, Status

# A part that ends soon after each start, or that cannot be started at all.
BROKEN = ("failing", "failed")
NEEDS = ("starlette", "uvicorn")


def _stack() -> Stack:
    # Imported late: users of a remote stack do not need these packages.
    try:
        from retrofill_tools.stack.stack import Stack
    except ImportError as e:
        raise UserError(f"the embedded stack is not installed ({e.name}): install retrofill[embedded]") from e
    return Stack(checked_settings())


def up(as_json: AsJson = False) -> None:
    """Start the embedded stack: Kafka, Postgres, Spark and the services."""
    console = Console(stderr=as_json)
    stack = _stack()
    from retrofill_tools.stack.stack import PartFailed

    try:
        with console.status("starting") as spinner:

            def progress(text: str) -> None:
                spinner.update(text)
                if not console.is_terminal and ":" not in text:
                    console.print(text)

            started = stack.up(lambda part, seconds: console.print(f"{part:<17} ready  {seconds:5.1f} s"), progress)
    except PartFailed as e:
        raise UserError(str(e)) from e
    except OSError as e:
        raise UserError(f"the stack in {_home()} cannot be used: {e}") from e
    if not started:
        console.print("already running")
    found = stack.status()
    if as_json:
        print_json(_document(found))
    else:
        console.print(f"Console {found.endpoints.get('console_url')}")


def down(
    delete: Annotated[
        bool, typer.Option("--delete", help="Also delete its data: pipelines, backfills, messages, logs.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Stop the embedded stack. Its data is kept."""
    stack = _stack()
    if delete:
        confirm(f"stop the stack in {_home()} and permanently delete its data", yes=yes)
    try:
        stopped = stack.down(delete=delete)
    except OSError as e:
        raise UserError(f"the stack in {_home()} cannot be used: {e}") from e
    if as_json:
        print_json({"stopped": stopped, "deleted": delete})
    else:
        print_text(f"{'stopped' if stopped else 'nothing was running'}{', and its data is deleted' if delete else ''}")


def status(as_json: AsJson = False) -> None:
    """Show the state of all parts, their addresses, and the seats of run-starters.

    The exit status is 1 while a part is failing.
    """
    stack = _stack()
    found = stack.status()
    there, served = hosts.known() if any(part.state == "running" for part in found.parts) else ([], [])
    if as_json:
        print_json(_document(found) | {"hosts": there, "pools": served})
    else:
        _show(found)
        if there:
            hosts.print_hosts(there)
            warn(unserved(each.pool) for each in served if not each.hosts)
    if any(part.state in BROKEN for part in found.parts):
        raise typer.Exit(1)


def _show(found: Status) -> None:
    table = Table(box=None)
    for heading in ("part", "state", "pid", "restarts", "up for"):
        table.add_column(heading, justify="right" if heading in ("pid", "restarts") else "left")
    for part in found.parts:
        since = "" if part.uptime is None else str(timedelta(seconds=part.uptime))
        table.add_row(part.name, part.state, str(part.pid or ""), str(part.restarts), since)
    console = Console()
    console.print(table)
    if any(part.state != "stopped" for part in found.parts):
        console.print(f"Console {found.endpoints.get('console_url')}")
        console.print(
            f"Kafka {found.endpoints.get('kafka_bootstrap_servers')}, Spark {masked_remote(found.endpoints.get('spark_remote'))}"
        )
    for part in found.parts:
        if part.state in BROKEN:
            Console(stderr=True).print(
                f"{part.name} is {part.state}: {part.reason} (retrofill logs {part.name})", markup=False, soft_wrap=True
            )


def _home() -> Path:
    return checked_settings().home.absolute()


def _document(found: Status) -> dict[str, object]:
    parts = [
        {
            "name": part.name,
            "pid": part.pid,
            "state": part.state,
            "restarts": part.restarts,
            "reason": part.reason,
        }
        for part in found.parts
    ]
    return {
        "home": str(_home()),
        "kafka": {"bootstrap_servers": found.endpoints.get("kafka_bootstrap_servers")},
        "postgres": {"dsn": found.endpoints.get("postgres_dsn")},
        # The embedded server has no token; a user's own is in RETROFILL_SPARK_REMOTE.
        "spark": {"remote": masked_remote(found.endpoints.get("spark_remote"))},
        "console": {"url": found.endpoints.get("console_url")},
        "topic_prefix": found.endpoints.get("topic_prefix"),
        "services": [part for part in parts if part["name"] in SERVICES],
        "parts": parts,
    }


def logs(
    name: Annotated[str, typer.Argument(help="A part of the stack, drivers or supervisor.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of last lines to print.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Show the log of a part. For logs of attempts: retrofill runs logs."""
    from retrofill_tools.stack.layout import PARTS, SUPERVISOR

    if follow and as_json:
        raise WrongUsage("--follow and --json cannot be combined: --json is one document")
    known = (*PARTS, "drivers", SUPERVISOR)
    if name not in known:
        raise UserError(f"there is no log {name!r}: choose one of {', '.join(known)}")
    path = _stack().log(name)
    if not path.exists():
        raise UserError(f"{name} has no log yet: {path} does not exist (start the stack with 'retrofill up')")
    if as_json:
        with path.open(errors="replace") as log:
            last = deque((line.rstrip("\n") for line in log), maxlen=lines)
        print_json({"name": name, "path": str(path), "lines": list(last)})
        return
    sys.stdout.flush()
    os.execvp("tail", ["tail", "-n", str(lines), *(["-F"] if follow else []), str(path)])


def open_(
    id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="A backfill. Default: the list of all.", autocompletion=backfill_ids),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Open the console's page of a backfill, or of all, in a browser.

    Prints the address, too: that is all where there is no browser.
    """
    console = checked_settings().console_url
    if console is None:
        raise UserError(
            "the console's address is unknown: set RETROFILL_CONSOLE_URL to its address, or start the stack"
        )
    address = console if id is None else f"{console.rstrip('/')}/backfills/{quote(id, safe='')}"
    if as_json:
        return print_json({"url": address})
    print_text(address)
    # Without a display, there are only browsers that take over the terminal.
    if sys.platform == "darwin" or any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        webbrowser.open(address)
    return None


def service(name: Annotated[str, typer.Argument(help="One of the four services.")]) -> None:
    """Run one more replica of a service in the foreground."""
    if name not in SERVICES:
        raise UserError(f"there is no service {name!r}: choose one of {', '.join(SERVICES)}")
    os.execv(sys.executable, command_of(SERVICES[name].package))


def console(
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port to listen on. Default: RETROFILL_CONSOLE_PORT.")
    ] = None,
) -> None:
    """Serve the console in the foreground, for a local or a remote installation.

    The embedded stack has one already: 'retrofill status' shows its address.
    """
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        raise UserError(f"the console is not installed ({missing[0]}): install retrofill[console]")
    chosen = [] if port is None else ["--port", str(port)]
    os.execv(sys.executable, command_of("retrofill_console", *chosen))
