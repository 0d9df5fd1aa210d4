"""A callback function for tests: each call appends a line to a file, whichever process makes it."""

from __future__ import annotations

import json
import os
from typing import Any


def append_line(path: str, context: dict[str, Any]) -> None:
    """Append the call's deadline, idempotency key and attempt. One ``O_APPEND`` write is never
    torn.
    """
    line = json.dumps({name: context[name] for name in ("deadline_id", "idempotency_key", "attempt")})
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)
