"""Every ``retrofill`` command that a page shows is one that the command line takes: names, arguments and options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import typer

from retrofill.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "deploy" / "README.md"]
SHOWN = re.compile(r"^ {4}(?:[A-Z_]+=\S+ |[A-Z_]+='[^']*' )*(retrofill [a-z-]+.*?)(?: +#.*)?$", re.MULTILINE)
# What pages write for something of the reader's.
STANDS_FOR = {"ID": "42", "NAME": "run-starter", "FILE": "orders.py", "PLACE": "2:0", "…": ""}


def shown() -> list[tuple[str, str]]:
    """Page and command."""
    return [(page.name, command) for page in PAGES for command in SHOWN.findall(page.read_text())]


def test_pages_show_commands() -> None:
    assert len(shown()) > 25


@pytest.mark.parametrize(("page", "command"), shown())
def test_the_command_line_takes_what_a_page_shows(page: str, command: str) -> None:
    words = [STANDS_FOR.get(word, word) for word in shlex.split(command)[1:]]
    parse(typer.main.get_command(app), [word for word in words if word])


def parse(command: click.Command, words: list[str]) -> None:
    """Go down to the command and have its options and arguments read; nothing is run."""
    while isinstance(command, click.Group):
        context = click.Context(command)
        name, found, words = command.resolve_command(context, words)
        assert found is not None, name
        command = found
    command.make_context(command.name, words)
