"""Asks before something is destroyed, by one rule for all commands.

Destroyed is what no other command brings back: work in progress, staged output, published output (also where an undo
restores an older one), history, messages, and who owns a directory.
"""

from __future__ import annotations

import sys
from typing import Annotated, TextIO

import typer

from retrofill.errors import UserError, WrongUsage

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def confirm(what: str, *, yes: bool) -> None:
    """Ask on the terminal whether to do ``what``, like ``stop the stack``.

    Raises ``UserError`` for anything but a yes, and ``WrongUsage`` if there is no terminal and no ``--yes``.
    """
    if yes:
        return
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
        raise WrongUsage(f"to {what}, add --yes: there is no terminal to ask on")
    # On standard error, to keep standard output for results.
    sys.stderr.write(f"{what[0].upper()}{what[1:]}? [y/N]: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UserError("nothing was changed")


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()
