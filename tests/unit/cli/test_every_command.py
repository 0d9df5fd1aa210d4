"""Every command that prints data has ``--json``, and the shell's questions are answered."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer
from tests.support.terminal import Cli
from typer.core import TyperCommand, TyperGroup

from retrofill_tools.cli.main import COMMANDS, command_line
from retrofill_tools.cli.options import Shell

# What it runs or prints is no data: a service or the console in the foreground, and a script for the shell.
WITHOUT = {"service", "console", "completion"}


def tool(words: list[str] | None = None) -> TyperGroup:
    made = typer.main.get_command(command_line(words))
    assert isinstance(made, TyperGroup)
    return made


def commands(group: TyperGroup, path: str = "") -> Iterator[tuple[str, TyperCommand]]:
    for name, child in group.commands.items():
        if isinstance(child, TyperGroup):
            yield from commands(child, f"{path} {name}".strip())
        else:
            assert isinstance(child, TyperCommand)
            yield f"{path} {name}".strip(), child


ALL = dict(commands(tool()))


def test_the_walk_finds_all() -> None:
    assert {"runs logs", "runs show", "watch", "backfill show", "recover", "up"} <= set(ALL)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_its_own_name_where_it_is_imported_alone(name: str) -> None:
    assert list(tool([name, "--help"]).commands) == [name]


def test_what_is_listed_is_what_the_commands_say() -> None:
    """Lists of commands do not import them."""
    found = tool()
    assert list(found.commands) == list(COMMANDS)
    for name, command in found.commands.items():
        listed = COMMANDS[name]
        inner = command.commands if isinstance(command, TyperGroup) else {}
        assert (about(command.help), {each: about(child.help) for each, child in inner.items()}) == (
            listed.about,
            listed.commands,
        )


def about(help: str | None) -> str:
    """Its first paragraph."""
    return " ".join((help or "").partition("\n\n")[0].split())


# typer itself uses pydantic to convert arguments.
HEAVY = {"sqlalchemy", "psycopg", "pydantic_settings", "confluent_kafka", "retrofill_core.contract"}


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("--version", None),
        ("--help", None),
        ("backfill --help", None),
        ("completion bash", None),
        ("", "retrofill ba"),
        ("", "retrofill backfill sh"),
    ],
)
def test_a_list_of_commands_imports_none(typed: str, completed: str | None) -> None:
    code = (
        "import sys, retrofill_tools.cli.main as it\n"
        f"try: it.run()\nfinally: print(sorted({HEAVY} & set(sys.modules)), file=sys.stderr)"
    )
    asked = (
        {"_RETROFILL_COMPLETE": "complete_bash", "COMP_WORDS": completed, "COMP_CWORD": str(completed.count(" "))}
        if completed
        else {}
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *typed.split()],
        env={**os.environ, **asked}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.strip()) == (0, "[]")
    assert done.stdout.strip()


@pytest.mark.parametrize("path", sorted(ALL))
def test_a_command_that_prints_data_has_json(path: str) -> None:
    options = {name for parameter in ALL[path].params for name in parameter.opts}
    assert ("--json" in options) == (path not in WITHOUT)


@pytest.mark.parametrize("path", sorted(ALL))
def test_lists_and_what_shows_one_are_printed_in_each_form(path: str) -> None:
    options = {name for parameter in ALL[path].params for name in parameter.opts}
    reads = path.split()[-1] in ("list", "show", "hosts")
    assert ("--output" in options, "-o" in options) == (reads, reads)


@pytest.mark.parametrize("name", [name for name, listed in COMMANDS.items() if listed.commands])
def test_the_help_of_a_group_names_all_it_does(name: str) -> None:
    about = {word.strip(",.;").lower() for word in COMMANDS[name].about.split()}
    assert set(COMMANDS[name].commands) <= about


# A trial is of exactly one day.
@pytest.mark.parametrize("path", sorted({*ALL} - {"test"}))
def test_an_interval_is_named_by_one_option(path: str) -> None:
    options = {name for parameter in ALL[path].params for name in parameter.opts}
    assert options.isdisjoint({"--date", "--interval", "--intervals", "--day"})


@pytest.mark.parametrize("path", ["runs show", "runs logs"])
def test_runs_are_named_in_one_way(path: str) -> None:
    named = [each.metavar for each in ALL[path].params[:2]]
    assert named == ["RUN|attempt:ID|BACKFILL", "[DATE]"]


@pytest.mark.parametrize("shell", list(Shell))
def test_the_script_of_each_shell(shell: Shell, cli: Cli) -> None:
    found = cli("completion", shell)
    assert (found.status, found.err) == (0, "")
    assert "_RETROFILL_COMPLETE" in found.out


def test_the_script_for_bash_is_valid(cli: Cli) -> None:
    checked = subprocess.run(["bash", "-n"], input=cli("completion", "bash").out, text=True, check=False)
    assert checked.returncode == 0


@pytest.mark.parametrize(
    ("words", "offered"),
    [("retrofill runs ", {"list", "show", "logs", "retry", "cancel"}), ("retrofill backfill show ", set())],
)
@pytest.mark.usefixtures("nowhere")
def test_what_the_shell_is_offered(words: str, offered: set[str], cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a database no ids are, and nothing disturbs the prompt."""
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    monkeypatch.setenv("_RETROFILL_COMPLETE", "complete_bash")
    found = cli()
    assert (found.status, found.err) == (0, "")
    assert set(found.out.split()) == offered
