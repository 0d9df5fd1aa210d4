"""Errors shown to users, and exceptions as one line of text."""

from __future__ import annotations

from typing import Any, Mapping


def stored_line(error: Mapping[str, Any]) -> str:
    """A stored error (``ErrorInfo``) as one line."""
    lines = str(error["message"]).strip().splitlines()
    return f"{error['type']}: {lines[0]}" if lines else str(error["type"])


# The longest error that each run of an attempt has a copy of.
HEAD_CHARACTERS = 300


def head_of(message: str, traceback: str | None) -> str | None:
    """What a run keeps of an error that others have, too: the first line. ``None``: it keeps it whole, which is short."""
    if len(message) + len(traceback or "") <= HEAD_CHARACTERS:
        return None
    return shortened(next(iter(message.strip().splitlines()), ""), HEAD_CHARACTERS)


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, or its type's name if it has none.

    For a wrapped database error (SQLAlchemy's ``orig``), of the original: the wrapper only repeats
    the statement.
    """
    cause = getattr(error, "orig", None) or error
    return next(iter(str(cause).strip().splitlines()), type(cause).__name__)


def kind_and_line(error: BaseException) -> str:
    """An exception as ``Type: first line``."""
    cause = getattr(error, "orig", None) or error
    line = first_line(cause)
    name = type(cause).__name__
    return line if line == name else f"{name}: {line}"


def last_line(text: str | None) -> str:
    """The last line with text in what a program printed."""
    lines = [" ".join(line.split()) for line in (text or "").splitlines()]
    return next((line for line in reversed(lines) if line), "")


def shortened(text: str, characters: int) -> str:
    """``text`` of at most so many characters; an ellipsis says that it was longer."""
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


class NotConfigured(Exception):
    """``variable`` is required but neither set nor published by a running embedded stack.

    ``why`` replaces that message.
    """

    def __init__(self, variable: str, why: str | None = None) -> None:
        super().__init__(
            why or f"no stack is running in this folder (start one with 'retrofill up') and {variable} is not set"
        )


class UserError(Exception):
    """A one-line message about what went wrong and what to do. Front ends show it unchanged."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class WrongUsage(UserError):
    """An argument that is invalid regardless of the state of the installation."""


class InReview(UserError):
    """What was waited for is in review: a person has to decide how it goes on."""


class NotThere(UserError):
    """What is named does not exist."""


class Interrupted(UserError):
    """The user stopped waiting; the requested work continues."""
