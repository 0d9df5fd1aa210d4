"""``retrofill console``: the web page, in the foreground."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from retrofill.errors import UserError

NEEDS = ("starlette", "uvicorn")


def register(app: typer.Typer) -> None:
    app.command()(console)


def console(
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port to listen on. Default: RETROFILL_CONSOLE_PORT.")
    ] = None,
) -> None:
    """Serve the web page in the foreground, also for an installation elsewhere.

    The embedded stack has one already: 'retrofill status' shows its address.
    """
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        raise UserError(f"the console is not installed ({missing[0]}): install retrofill[console]")
    chosen = [] if port is None else ["--port", str(port)]
    os.execv(sys.executable, [sys.executable, "-m", "retrofill_console", *chosen])
