"""Options shared by several commands, and ``retrofill completion``: the names that a shell offers for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer
from sqlalchemy import Connection

# Not among the exported names, but the documented way is two options of every command.
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]

from retrofill_tools.client.backfills import ids_like
from retrofill_tools.client.connect import load_settings, reading
from retrofill_tools.client.pipelines import applied_pipelines

# The shell calls the command with this variable to ask what may follow.
VARIABLE = "_RETROFILL_COMPLETE"
CONNECT_SECONDS = 2
MOST = 50
# Makes the command answer the shell's questions.
completion_init()
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="Show at most this many.")]
TimeLimit = Annotated[
    float,
    typer.Option(
        "--timeout",
        envvar="RETROFILL_ANSWER_SECONDS",
        min=0.1,
        metavar="SECONDS",
        help="How long to wait for the reply.",
    ),
]
ANSWER_SECONDS = 30.0


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="Your shell.")]) -> None:
    """Print a script that completes commands, options, backfills and pipelines.

    For bash, add to ~/.bashrc: eval "$(retrofill completion bash)". For zsh, the same in ~/.zshrc,
    after compinit. For fish: retrofill completion fish > ~/.config/fish/completions/retrofill.fish
    """
    typer.echo(get_completion_script(prog_name="retrofill", complete_var=VARIABLE, shell=shell))


def backfill_ids(incomplete: str) -> list[str]:
    """Ids of backfills that begin like that, active and new ones first."""
    return _known(lambda conn: ids_like(conn, incomplete, MOST))


def pipeline_names(incomplete: str) -> list[str]:
    """Names of applied pipelines that begin like that."""
    return _known(lambda conn: [each.name for each in applied_pipelines(conn) if each.name.startswith(incomplete)])


def _known(read: Callable[[Connection], list[str]]) -> list[str]:
    # A shell waits for the answer.
    os.environ.setdefault("PGCONNECT_TIMEOUT", str(CONNECT_SECONDS))
    try:
        with reading(load_settings()) as conn:
            return read(conn)
    except Exception:  # noqa: BLE001 - whatever it is: nothing is offered, and the prompt stays as it is
        return []


PipelineFilter = Annotated[
    str | None, typer.Option("--pipeline", help="Only this pipeline.", autocompletion=pipeline_names)
]
