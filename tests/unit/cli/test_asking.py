"""Commands that destroy something ask first, or refuse where nobody can be asked."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.terminal import Cli
from tests.unit.cli.test_every_command import ALL

# Each of them, as it is typed.
DESTRUCTIVE = {
    "backfill cancel": ["x"],
    "backfill discard": ["x"],
    "backfill publish": ["x", "--force"],
    "backfill undo": ["x"],
    "dead-letters drop": ["--all"],
    "down": ["--delete"],
    "pipelines delete": ["x"],
    "places release": ["."],
    "purge": ["--older-than", "90d"],
    "recover": [],
    "runs cancel": ["x", "--run", "7"],
    "tokens revoke": ["x"],
}
# They read first what they say in their question.
READ_FIRST = {"dead-letters drop", "pipelines delete", "places release", "recover", "tokens revoke"}


def test_all_of_them_have_the_same_option() -> None:
    asks = {path for path, command in ALL.items() if any("--yes" in each.opts for each in command.params)}
    assert asks == set(DESTRUCTIVE)
    assert {getattr(each, "help", None) for path in asks for each in ALL[path].params if "--yes" in each.opts} == {
        "Do not ask for confirmation."
    }


@pytest.mark.parametrize("path", sorted(set(DESTRUCTIVE) - READ_FIRST))
@pytest.mark.usefixtures("nowhere")
def test_without_a_terminal_nothing_is_destroyed_unasked(path: str, cli: Cli) -> None:
    refused = cli(*path.split(), *DESTRUCTIVE[path])
    assert (refused.status, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert refused.err.startswith("retrofill: to ")
    assert refused.err.endswith(", add --yes: there is no terminal to ask on\n")


@pytest.mark.parametrize(
    "words",
    [
        ["backfill", "undo", "x", "--review"],
        ["backfill", "undo", "x", "--dry-run"],
        ["backfill", "publish", "x"],
        ["purge", "--older-than", "90d", "--dry-run"],
    ],
)
@pytest.mark.usefixtures("nowhere")
def test_what_can_be_reviewed_or_changes_nothing_does_not_ask(words: list[str], cli: Cli) -> None:
    assert "no stack is running in this folder" in cli(*words).err


QUESTION = "Cancel all unfinished runs of backfill ü x? [y/N]: "
ASK = (
    "from retrofill_tools.cli.asking import confirm; from retrofill.errors import UserError\n"
    "try: confirm('cancel all unfinished runs of backfill ü x', yes=False)\n"
    "except UserError as e: print(type(e).__name__, e)\nelse: print('done')"
)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("y\n", "done"),
        (" YES \n", "done"),
        ("n\n", "UserError nothing was changed"),
        ("\n", "UserError nothing was changed"),
        ("yeah\n", "UserError nothing was changed"),
        ("\x04", "UserError nothing was changed"),
    ],
)
def test_on_a_terminal_only_a_yes_goes_on(typed: str, said: str) -> None:
    ours, theirs = pty.openpty()
    try:
        asking = subprocess.Popen(
            [sys.executable, "-c", ASK], stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, text=True
        )
        asked = b""
        while not asked.endswith(b": "):
            asked += os.read(ours, 1024)
        assert asked.decode() == QUESTION
        os.write(ours, typed.encode())
        out, _ = asking.communicate(timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert out.strip() == said


def test_a_redirected_question_is_not_asked(tmp_path: Path) -> None:
    """Nobody would see it."""
    ours, theirs = pty.openpty()
    try:
        with (tmp_path / "err").open("w") as err:
            done = subprocess.run([sys.executable, "-c", ASK], stdin=theirs, stderr=err, capture_output=False, check=False,
                                  stdout=subprocess.PIPE, text=True)  # fmt: skip
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.stdout.startswith("WrongUsage to cancel all unfinished runs of backfill ü x, add --yes")
