"""``spark-submit …/retrofill/driver/once.py``: a driver for one attempt, in a classic session.

It uses a warm driver's protocol (see ``__main__``) over a socket, because spark-submit uses the
pipes itself. It connects to ``RETROFILL_DRIVER_SOCKET`` (host:port), sends ``{"token":
"$RETROFILL_DRIVER_TOKEN"}`` and, once it has its settings, ``{"ready": {…}}``, and exits after ``done``. As with a warm
driver, the attempt has a forked process of its own, so that its parent sees how user code ends that.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

# A script's directory is first in the path, and these modules would hide the standard library's.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).absolute().parents[2]))

import socket
from functools import partial
from typing import IO

from retrofill.driver.application import versions
from retrofill.driver.classic_session import ClassicSession
from retrofill.driver.config import Config, settings
from retrofill.driver.forking import Notes, Parent
from retrofill.driver.process import hang_up_with_parent
from retrofill.driver.serve import serve_attempt


def main() -> None:
    incoming, outgoing = connect()
    config = settings(incoming)
    # Imported here, pyspark need not be in each process.
    known = versions(spark_version())
    hang_up_with_parent()
    Parent(
        incoming, outgoing, lambda _incoming, _outgoing, notes, _: notes.ready(known, None), partial(attempt, config)
    ).serve()


def attempt(config: Config, incoming: IO[str], outgoing: IO[str], notes: Notes, _: None) -> None:
    """Serve the only attempt. Its process connects to the JVM of spark-submit, which the parent never does."""
    serve_attempt(config, ClassicSession, incoming, outgoing, notes, once=True)


def spark_version() -> str | None:
    """That of pyspark, which a driver that only runs scripts does without."""
    try:
        import pyspark
    except ImportError:
        return None
    return str(pyspark.__version__)


def connect() -> tuple[int, int]:
    """The host's connection, for reading and for writing. Programs that user code starts do not inherit it."""
    address, _, port = os.environ.pop("RETROFILL_DRIVER_SOCKET").rpartition(":")
    connection = socket.create_connection((address, int(port)))
    token = json.dumps({"token": os.environ.pop("RETROFILL_DRIVER_TOKEN", "")})
    connection.sendall(f"{token}\n".encode())
    incoming = connection.detach()
    return incoming, os.dup(incoming)


if __name__ == "__main__":
    main()
