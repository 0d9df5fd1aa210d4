"""``python -m retrofill.driver``: a warm driver, which runs one run after the other for the host that started it.

Host and driver talk in JSON lines: the driver reads its standard input and writes to its standard output. What user
code prints goes to standard error, and so do the logs. The order is always this:

1. the driver, once it is warm:          ``{"ready": true}``
2. the host:                             ``{"launch": {"backfill_id", "run_id", "attempt", "pipeline", "interval_start",
   "interval_end", "conf", "trace", "publication", "outputs"}}``; the driver opens the Spark session and sends the first
   heartbeat. From ``publication`` 1 on there is no session and no user code: the ``outputs`` are published, that is all
3. the driver, when that is acknowledged: ``{"may_begin": true}``
4. the host, having read that the attempt is still the live one: ``{"begin": true}``, or ``false``
5. the driver, where tasks staged output, after ``RunStaged`` is acknowledged: ``{"may_publish": true}``; the host, once
   Postgres says whether that was accepted: ``{"publish": true}``, and the driver publishes, or ``false``
6. the driver, after its reports are acknowledged and the session is released: ``{"done": {"reported": true}}``;
   after ``false``, without having reported an end: ``{"done": {"reported": false}}``; then 2 again.

When the driver gives up by itself, the last thing that it says is ``{"lost": "why"}``.

At any moment ``{"end": true}``, the end of the input (the host is gone, by kill -9 too) and SIGTERM end the driver: it
interrupts its work in Spark, as far as that takes a moment only, and leaves. It also leaves when its lease is over or a
report cannot be delivered. A driver that exits without a ``done`` is lost.
"""

from __future__ import annotations

import os
import sys
from typing import IO

from retrofill.bus.crash import arm
from retrofill.contract.topics import DRIVER
from retrofill.driver.conversation import Conversation
from retrofill.driver.process import Ending, end_with_host
from retrofill.driver.report import SOURCE, Wire
from retrofill.driver.serve import Server
from retrofill.driver.session import ConnectSessions, choose_connect
from retrofill.logs import configure_logging
from retrofill.redaction import configure_redaction, redact_event
from retrofill.settings import Settings
from retrofill.tracing import configure_tracing


def main() -> None:
    """Serve until the host ends it."""
    heard, said = take_pipes()
    settings = Settings().acting_as(DRIVER)
    configure_redaction(settings.redact)
    configure_logging(settings.log_level, redact_event)
    configure_tracing(SOURCE)
    arm(settings.crash_point)
    ending = Ending()
    end_with_host(ending)
    host = Conversation(heard, said, ending)
    choose_connect(settings)
    warm_up()
    wire = Wire(settings, on_loss=ending.end)
    wire.connect()
    server = Server(settings, ending, host, wire, lambda launch: ConnectSessions(settings, launch))
    host.say("ready", True)
    while True:
        server.serve_one()


def take_pipes() -> tuple[IO[str], IO[str]]:
    """Keep the pipes for ourselves: user code and its children read nothing, and print to standard error."""
    heard, said = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.flush()
    return os.fdopen(heard, encoding="utf-8"), os.fdopen(said, "w", encoding="utf-8")


def warm_up() -> None:
    """Import what takes long, so that no run waits for it."""
    import pyspark.sql.connect.session
    import pyspark.sql.functions
    import pyspark.sql.types  # noqa: F401


if __name__ == "__main__":
    main()
