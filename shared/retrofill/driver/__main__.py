"""``python …/retrofill/driver/__main__.py``: a warm driver, which executes attempts one after another.

Host and driver exchange JSON lines over the driver's standard input and output. User code's output
and the logs go to the log of the attempt (``output.Output``). The protocol:

1. host: ``{"settings": {…}}`` (``config.Config``)
2. driver, when warm and Spark has answered it: ``{"ready": {"python": "3.11.2", "spark": "4.3.0"}}``, the
   versions, as far as it knows them
3. host: ``{"launch": {…}}``, an attempt with one or several runs (``launch.Launch``); ``last``: the
   process is replaced afterwards. The driver opens the Spark session, with heartbeats if that takes
   long. If the attempt only publishes, it needs no user code, and a session only for tables.
4. driver, for each run: ``{"may_begin": RUN_ID}``
5. host: ``{"begin": 14.2}``, the seconds left of the attempt's lease, or ``null`` if the run must
   not begin; then the driver begins no other run of the attempt either
6. driver, for the runs of a piece that staged output, while the next one is under way:
   ``{"may_publish": [RUN_ID, …]}``, and again before each commit to a table; host: ``{"publish": true}``
   if Postgres has all of it accepted, else ``false``
7. driver, when its reports are acknowledged: ``{"done": {"reported": true, "retire": false}}``,
   with ``retire`` if a run failed. Then 3 again, or it is replaced; the session is released
   meanwhile.

At any time, the driver sends ``{"report": {"number": 7, "trace": null, "report": {…}}}``, a message of
the contract without what the host knows. The host publishes it, and says ``{"acknowledged": 7}`` once
Kafka has this and all earlier ones, or ``{"undelivered": "why"}``. For the user's code, the driver
sends ``{"code": "SHA256"}``; the host answers with ``{"code": {"folder": "/…"}}``, with the ``archive`` in
base64 to a driver on another machine, or with the ``error``.

A driver that gives up sends ``{"lost": "why"}`` as its last message. If a task timed out and does not
end, ``{"timed_out": {"task": "a", "try_number": 1, "error": {…}}}`` comes before it, after all reports
were acknowledged; the host reports the rest once the process has exited.

``{"end": true}``, end of input (the host exited, even by kill -9) and SIGTERM end the driver at any
time: it briefly tries to interrupt its work in Spark, and exits. It also exits when its lease ends
or a report cannot be delivered. A driver that exits without ``done`` is lost.

The user's Python executes this. It needs a pyspark from 3.5 on and nothing else: this package uses
the standard library only, of Python 3.8.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import IO

if not __package__:
    # Started by its path. The working directory is searched too, as with ``python -m``.
    sys.path[0:1] = [str(Path(__file__).absolute().parents[2]), str(Path.cwd())]

from retrofill.driver import application
from retrofill.driver.config import Config
from retrofill.driver.conversation import Conversation
from retrofill.driver.cost import ask_first
from retrofill.driver.output import Output
from retrofill.driver.process import Ending, end_with_host
from retrofill.driver.reaching import reach
from retrofill.driver.report import Wire
from retrofill.driver.serve import Server
from retrofill.driver.session import ConnectSessions, choose_connect
from retrofill.driver.setup import set_up


def main() -> None:
    incoming, outgoing = take_pipes()
    output = Output.of_pool()
    ending = Ending()
    end_with_host(ending)
    host = Conversation(incoming, outgoing, ending)
    config = Config.of(host.hear("settings"))
    set_up(config)
    choose_connect(config)
    warm_up()
    spark = application.Server()
    reach(config.spark_remote, ending.end, spark)
    threading.Thread(target=ask_first, args=(config.spark_ui,), name="first-cost", daemon=True).start()
    wire = Wire(host, on_loss=ending.end)
    sessions_of = partial(ConnectSessions, config, spark)
    server = Server(config, ending, host, wire, sessions_of, output=output)
    host.say("ready", application.versions(spark.version))
    while True:
        server.serve_one()


def take_pipes() -> tuple[IO[str], IO[str]]:
    """Reserve stdin and stdout for the host: user code reads nothing and prints to stderr."""
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.flush()
    return os.fdopen(incoming, encoding="utf-8"), os.fdopen(outgoing, "w", encoding="utf-8")


def warm_up() -> None:
    """Import slow modules in advance."""
    import pyspark.sql.connect.session
    import pyspark.sql.functions
    import pyspark.sql.types  # noqa: F401


if __name__ == "__main__":
    main()
