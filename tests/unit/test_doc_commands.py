"""Every ``retrofill`` command in the docs is valid for the CLI: names, arguments and options."""

from __future__ import annotations

import pytest
import typer
from tests.support.doc_commands import shown, words_of
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from retrofill.cli.main import app


def test_pages_show_commands() -> None:
    assert len(shown()) > 25


@pytest.mark.parametrize(("page", "command"), shown())
def test_the_command_line_takes_what_a_page_shows(page: str, command: str) -> None:
    parse(typer.main.get_command(app), words_of(command))


def test_one_that_does_not_exist_is_found_out() -> None:
    for wrong in ("retrofill backfill shwo b1", "retrofill backfill show b1 --al"):
        with pytest.raises(TyperException):
            parse(typer.main.get_command(app), words_of(wrong))


def parse(command: TyperCommand | TyperGroup, words: list[str]) -> None:
    """Resolve the command and parse its options and arguments without running it."""
    while isinstance(command, TyperGroup):
        context = typer.Context(command)
        name, found, words = command.resolve_command(context, words)
        assert found is not None, name
        command = found  # type: ignore[assignment]
    command.make_context(command.name, words)
