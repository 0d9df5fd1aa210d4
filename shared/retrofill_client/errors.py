"""The errors of the client. The text of each is one line that says what was wrong, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retrofill_client.documents import Backfill


class RetrofillError(Exception):
    """The base of all."""


class BadRequest(RetrofillError):
    """An argument is wrong, whatever the state of the installation."""


class NotAllowed(RetrofillError):
    """The token is missing or unknown, or its role does not allow this."""


class NotFound(RetrofillError):
    """What is named does not exist."""


class Refused(RetrofillError):
    """The request was refused. ``reason``: why, for programs, such as ``overlap``; ``None`` for a command."""

    def __init__(self, line: str, reason: str | None = None) -> None:
        super().__init__(line)
        self.reason = reason


class Unreachable(RetrofillError):
    """The console, Kafka or Postgres cannot be reached. Nothing was requested, or it is not known."""


class NoAnswer(RetrofillError):
    """No answer came in time. The request counts once a service reads it; repeat it under the same id."""


class BackfillFailed(RetrofillError):
    """The backfill has ended and did not succeed: it failed or was cancelled. ``backfill``: its last state."""

    def __init__(self, line: str, backfill: Backfill) -> None:
        super().__init__(line)
        self.backfill = backfill


class WaitTimeout(RetrofillError):
    """The backfill has not ended in time. It goes on. ``backfill``: its last known state."""

    def __init__(self, line: str, backfill: Backfill) -> None:
        super().__init__(line)
        self.backfill = backfill
