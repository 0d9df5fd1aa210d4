"""Options shared by several commands, and ``retrofill completion``: the names that a shell offers for them."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

# Not among the exported names, but the documented way is two options of every command.
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]

from retrofill.errors import WrongUsage

if TYPE_CHECKING:
    from sqlalchemy import Connection

# The shell calls the command with this variable to ask what may follow, and with one of the others: what is typed.
VARIABLE = "_RETROFILL_COMPLETE"
TYPED = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
CONNECT_SECONDS = 2
MOST = 50
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class Form(StrEnum):
    """How a command prints what it has found."""

    TABLE = "table"
    WIDE = "wide"
    NAME = "name"
    JSON = "json"
    YAML = "yaml"


def takes_form(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that only reads the options ``-o`` and ``--json``, which is short for ``-o json``.

    It gets the chosen one as its keyword argument ``form``.
    """
    signature = inspect.signature(command, eval_str=True)
    output = Annotated[
        Form, typer.Option("--output", "-o", help="wide has more columns and cuts nothing; name prints only ids.")
    ]
    as_json = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter("output", keyword, default=Form.TABLE, annotation=output),
        inspect.Parameter("as_json", keyword, default=False, annotation=as_json),
    ]

    @functools.wraps(command)
    def expanded(*, output: Form, as_json: bool, **given: Any) -> None:
        if as_json and output not in (Form.TABLE, Form.JSON):
            raise WrongUsage(f"--json is -o json: it cannot be combined with -o {output}")
        command(**given, form=Form.JSON if as_json else output)

    own = [each.replace(kind=keyword) for name, each in signature.parameters.items() if name != "form"]
    expanded.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    expanded.__annotations__ = {each.name: each.annotation for each in [*own, *added]}
    return expanded


LatestCode = Annotated[
    bool,
    typer.Option(
        "--latest-code",
        help="Use the code that is applied when each run starts, also for the backfill's other runs from now on.",
    ),
]
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
    from retrofill_tools.client.backfills import ids_like

    return _known(lambda conn: ids_like(conn, incomplete, MOST))


def pipeline_names(incomplete: str) -> list[str]:
    """Names of applied pipelines that begin like that."""
    from retrofill_tools.client.pipelines import applied_pipelines

    return _known(lambda conn: [each.name for each in applied_pipelines(conn) if each.name.startswith(incomplete)])


def _known(read: Callable[[Connection], list[str]]) -> list[str]:
    from retrofill_tools.client.connect import load_settings, reading

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
