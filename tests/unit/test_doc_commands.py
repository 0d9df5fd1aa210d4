"""Every ``retrofill`` command in the docs is valid for the CLI: names, arguments and options."""

from __future__ import annotations

import pytest
import typer
from tests.support.doc_commands import mentioned, shown, words_of
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from retrofill_tools.cli.main import command_line

COMMAND = typer.main.get_group(command_line())


def test_pages_show_commands() -> None:
    assert len(shown()) > 25
    assert len(mentioned()) > 75


@pytest.mark.parametrize(("page", "command"), shown())
def test_the_command_line_takes_what_a_page_shows(page: str, command: str) -> None:
    parse(COMMAND, words_of(command))


@pytest.mark.parametrize(("page", "command"), sorted(set(mentioned())))
def test_a_command_in_a_sentence_exists_with_its_options(page: str, command: str) -> None:
    parse(COMMAND, words_of(command), complete=False)


def test_one_that_does_not_exist_is_found_out() -> None:
    for wrong in ("retrofill backfill shwo b1", "retrofill backfill show b1 --al", "retrofill hosts list"):
        for complete in (True, False):
            with pytest.raises(TyperException):
                parse(COMMAND, words_of(wrong), complete=complete)


def parse(command: TyperCommand | TyperGroup, words: list[str], *, complete: bool = True) -> None:
    """Resolve the command and parse its options and arguments without running it.

    If it is not ``complete``, arguments may be missing, and values may stand for others.
    """
    while isinstance(command, TyperGroup):
        context = typer.Context(command)
        name, found, words = command.resolve_command(context, words)
        assert found is not None, name
        command = found  # type: ignore[assignment]
    if complete:
        command.make_context(command.name, words)
    else:
        context = typer.Context(command)
        _, too_many, _ = command.make_parser(context).parse_args(words)
        if too_many:
            context.fail(f"it does not take {too_many}")
