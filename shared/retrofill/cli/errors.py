"""The one error that commands raise on purpose: a line for a person, and the exit status."""

from __future__ import annotations

REFUSED = 1
WRONG_USAGE = 2


class UserError(Exception):
    """What went wrong and what to do, in one line; the CLI prints it on stderr and exits with ``status``."""

    def __init__(self, message: str, status: int = REFUSED) -> None:
        super().__init__(" ".join(message.split()))
        self.status = status


def wrong_usage(message: str) -> UserError:
    """An argument that cannot be meant."""
    return UserError(message, WRONG_USAGE)
