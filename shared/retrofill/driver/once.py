"""``spark-submit …/retrofill/driver/once.py``: a driver for one attempt, in a classic session.

It uses a warm driver's protocol (see ``__main__``) over a socket, because spark-submit uses the
pipes itself. It connects to ``RETROFILL_DRIVER_SOCKET`` (host:port), sends ``{"token":
"$RETROFILL_DRIVER_TOKEN"}`` and ``{"ready": {…}}``, and exits after ``done``. If
``RETROFILL_DRIVER_LAUNCH`` names a file, it contains the launch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# A script's directory is first in the path, and these modules would hide the standard library's.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

import json  # noqa: E402
import socket  # noqa: E402

import pyspark  # noqa: E402

from retrofill.bus.crash import arm  # noqa: E402
from retrofill.contract.topics import DRIVER  # noqa: E402
from retrofill.driver.application import versions  # noqa: E402
from retrofill.driver.conversation import Conversation  # noqa: E402
from retrofill.driver.process import Ending, end_with_host  # noqa: E402
from retrofill.driver.report import SOURCE, Wire  # noqa: E402
from retrofill.driver.serve import Server  # noqa: E402
from retrofill.driver.session import ClassicSession  # noqa: E402
from retrofill.logs import configure_logging  # noqa: E402
from retrofill.redaction import configure_redaction, redact_event  # noqa: E402
from retrofill.settings import Settings  # noqa: E402
from retrofill.tracing import configure_tracing, flush  # noqa: E402


def main() -> None:
    settings = Settings().acting_as(DRIVER)
    configure_redaction(settings.redact)
    configure_logging(settings.log_level, redact_event)
    configure_tracing(SOURCE)
    arm(settings.crash_point)
    ending = Ending()
    end_with_host(ending)
    host = connect(ending)
    wire = Wire(settings, on_loss=ending.end)
    wire.connect()
    server = Server(settings, ending, host, wire, ClassicSession, once=True)
    host.say("ready", versions(pyspark.__version__))
    server.serve_one()
    # Exit even if user code left threads running.
    sys.stdout.flush()
    flush()
    os._exit(0)


def connect(ending: Ending) -> Conversation:
    address, _, port = os.environ["RETROFILL_DRIVER_SOCKET"].rpartition(":")
    connection = socket.create_connection((address, int(port)))
    # Never closed, and not inherited by user code's child processes.
    lines = Conversation(connection.makefile("r", encoding="utf-8"), connection.makefile("w", encoding="utf-8"), ending)
    lines.say("token", os.environ.pop("RETROFILL_DRIVER_TOKEN", ""))
    if (launch := os.environ.get("RETROFILL_DRIVER_LAUNCH")) is not None:
        lines.preset({"launch": json.loads(Path(launch).read_text(encoding="utf-8"))})
    return lines


if __name__ == "__main__":
    main()
