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


class UserError(Exception):
    """What went wrong and what to do about it, in one line. Every front end shows it as it is; nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class WrongUsage(UserError):
    """An argument that is invalid whatever the state of the installation."""


class Interrupted(UserError):
    """Somebody stopped waiting; what was asked for goes on."""
