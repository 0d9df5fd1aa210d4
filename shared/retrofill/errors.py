"""How an exception is put on one line, wherever it comes from."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, or its type's name where it has no text.

    A wrapped database error (SQLAlchemy's ``orig``) speaks for itself: its wrapper only repeats the statement.
    """
    cause = getattr(error, "orig", None) or error
    return next(iter(str(cause).strip().splitlines()), type(cause).__name__)


def kind_and_line(error: BaseException) -> str:
    """``Type: first line`` of an exception."""
    cause = getattr(error, "orig", None) or error
    line = first_line(cause)
    name = type(cause).__name__
    return line if line == name else f"{name}: {line}"
