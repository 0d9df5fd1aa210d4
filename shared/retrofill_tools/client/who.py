"""Identifies the user of this process, for requests."""

from __future__ import annotations

import getpass

MAX_NAME = 200


def local_user() -> str | None:
    """The name of the account, if it has one."""
    try:
        return getpass.getuser()[:MAX_NAME]
    except (KeyError, OSError, ImportError):  # an account without a name, as in many containers
        return None
