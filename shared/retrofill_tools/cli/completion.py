"""``retrofill completion``: a script for the shell, and the names that it offers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

# Not among the exported names, but the documented way is two options of every command.
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from sqlalchemy import Connection

# The shell calls the command with this variable to ask what may follow, and with one of the others: what is typed.
VARIABLE = "_RETROFILL_COMPLETE"
TYPED = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
CONNECT_SECONDS = 2
MOST = 50


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register(app: typer.Typer) -> None:
    app.command()(completion)


def words() -> list[str]:
    """The words after ``retrofill``: of this call, or of the line that the shell asks about."""
    if VARIABLE not in os.environ:
        return sys.argv[1:]
    # Makes the command answer the shell's questions.
    completion_init()
    return next((os.environ[name] for name in TYPED if name in os.environ), "").split()[1:]


def completion(shell: Annotated[Shell, typer.Argument(help="Your shell.")]) -> None:
    """Print a script that completes commands, options, backfills and pipelines.

    For bash, add to ~/.bashrc: eval "$(retrofill completion bash)". For zsh, the same in ~/.zshrc,
    after compinit. For fish: retrofill completion fish > ~/.config/fish/completions/retrofill.fish
    """
    typer.echo(get_completion_script(prog_name="retrofill", complete_var=VARIABLE, shell=shell))


def backfill_ids(incomplete: str) -> list[str]:
    """Ids of backfills that begin like that, active and new ones first."""
    from retrofill_tools.client import read_runs

    return _known(lambda conn: read_runs.ids_like(conn, incomplete, MOST))


def pipeline_names(incomplete: str) -> list[str]:
    """Names of applied pipelines that begin like that."""
    from retrofill_tools.client import read as reads

    return _known(lambda conn: [row["name"] for row in reads.pipelines(conn) if row["name"].startswith(incomplete)])


def _known(read: Callable[[Connection], list[str]]) -> list[str]:
    from retrofill_tools.client.connect import load_settings, reading

    # A shell waits for the answer.
    os.environ.setdefault("PGCONNECT_TIMEOUT", str(CONNECT_SECONDS))
    try:
        with reading(load_settings()) as conn:
            return read(conn)
    except Exception:  # noqa: BLE001 - whatever it is: nothing is offered, and the prompt stays as it is
        return []
