"""``spark-submit …/retrofill/driver/once.py``: a driver for one attempt, in a classic session.

It uses a warm driver's protocol (see ``__main__``) over a socket, because spark-submit uses the
pipes itself. It connects to ``RETROFILL_DRIVER_SOCKET`` (host:port), sends ``{"token":
"$RETROFILL_DRIVER_TOKEN"}`` and, once it has its settings, ``{"ready": {…}}``, and exits after ``done``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# A script's directory is first in the path, and these modules would hide the standard library's.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).absolute().parents[2]))

import socket

from retrofill.driver.application import versions
from retrofill.driver.classic_session import ClassicSession
from retrofill.driver.config import Config
from retrofill.driver.conversation import Conversation
from retrofill.driver.process import Ending, end_with_host
from retrofill.driver.report import Wire
from retrofill.driver.serve import Server
from retrofill.driver.setup import set_up
from retrofill.tracing import flush


def main() -> None:
    ending = Ending()
    end_with_host(ending)
    host = connect(ending)
    config = Config.of(host.hear("settings"))
    set_up(config)
    wire = Wire(host, on_loss=ending.end)
    server = Server(config, ending, host, wire, ClassicSession, once=True)
    host.say("ready", versions(spark_version()))
    server.serve_one()
    # Exit even if user code left threads running.
    sys.stdout.flush()
    flush()
    os._exit(0)


def spark_version() -> str | None:
    """That of pyspark, which a driver that only runs scripts does without."""
    try:
        import pyspark
    except ImportError:
        return None
    return str(pyspark.__version__)


def connect(ending: Ending) -> Conversation:
    address, _, port = os.environ.pop("RETROFILL_DRIVER_SOCKET").rpartition(":")
    connection = socket.create_connection((address, int(port)))
    # Never closed, and not inherited by user code's child processes.
    lines = Conversation(connection.makefile("r", encoding="utf-8"), connection.makefile("w", encoding="utf-8"), ending)
    lines.say("token", os.environ.pop("RETROFILL_DRIVER_TOKEN", ""))
    return lines


if __name__ == "__main__":
    main()
