"""One-line descriptions of exceptions, including those without a message."""

from __future__ import annotations

from subprocess import CompletedProcess

import pytest
from sqlalchemy.exc import OperationalError

from retrofill.errors import first_line, kind_and_line
from retrofill_tools.stack.processes import why_it_ended


@pytest.mark.parametrize(
    ("error", "line", "with_kind"),
    [
        (ValueError("one\ntwo"), "one", "ValueError: one"),
        (ValueError(), "ValueError", "ValueError"),
        (ValueError(" \n\n "), "ValueError", "ValueError"),
        (OperationalError("SELECT 1", {}, ConnectionError("gone\nhint")), "gone", "ConnectionError: gone"),
        (OperationalError("SELECT 1", {}, ConnectionError()), "ConnectionError", "ConnectionError"),
    ],
)
def test_an_exception_is_one_line(error: BaseException, line: str, with_kind: str) -> None:
    assert first_line(error) == line
    assert kind_and_line(error) == with_kind


@pytest.mark.parametrize(
    ("errors", "output", "why"),
    [
        ("one\n\ttwo  lines\n\n", "three", "two lines"),
        (" \n", "one\ntwo\n", "two"),
        ("", "", "exit status 3"),
        ("\n \n", "\n", "exit status 3"),
    ],
)
def test_why_a_process_ended_is_one_line(errors: str, output: str, why: str) -> None:
    assert why_it_ended(CompletedProcess(["x"], 3, output, errors)) == why
