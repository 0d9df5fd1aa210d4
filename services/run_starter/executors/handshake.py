"""The first message on a driver's connection, by which its host knows it."""

from __future__ import annotations

import json
import secrets
import socket
from typing import IO

# A driver sends its token at once; strangers may connect if the port is not on loopback.
HANDSHAKE_SECONDS = 5.0
MAX_HANDSHAKE_CHARS = 1000


def handshake(connection: socket.socket, token: str) -> IO[str] | None:
    """What the driver sends, line by line, if its first message is the token."""
    # For reading only: a file for both drops what it has read ahead when it is written to.
    lines = connection.makefile("r", encoding="utf-8")
    try:
        connection.settimeout(HANDSHAKE_SECONDS)
        sent = json.loads(lines.readline(MAX_HANDSHAKE_CHARS) or "{}").get("token")
        connection.settimeout(None)
    except (OSError, ValueError, AttributeError):
        sent = None
    known = isinstance(sent, str) and secrets.compare_digest(sent.encode(), token.encode())
    return lines if known else None
