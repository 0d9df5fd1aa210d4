"""Ports on loopback: the preferred one, the one this home had, or the next that is free."""

from __future__ import annotations

import socket


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connections are only being forgotten is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def choose(preferred: int, taken: set[int]) -> int:
    """``preferred`` or the next free port above it that is not in ``taken``."""
    for port in range(preferred, min(preferred + 2000, 65536)):
        if port not in taken and is_free(port):
            return port
    raise OSError(f"no free port from {preferred} on")


def answers(port: int) -> bool:
    """Whether something accepts connections on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
