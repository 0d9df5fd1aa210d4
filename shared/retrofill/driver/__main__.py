"""``python …/retrofill/driver/__main__.py``: a warm driver, which executes attempts one after another, each in a fork.

Host and driver exchange JSON lines over the driver's standard input and output. User code's output
and the logs go to the log of the attempt (``process.Output``). The protocol:

1. host: ``{"settings": {…}}`` (``config.Config``)
2. driver, when warm and Spark has answered it: ``{"ready": {"python": "3.11.2", "spark": "4.3.0"}}``, the
   versions, as far as it knows them
3. host: ``{"launch": {…}}``, an attempt with one or several runs (``launch.Launch``). The driver
   opens the Spark session, with heartbeats if that takes long. If the attempt only publishes, it needs
   no user code, and a session only for tables.
4. driver, for each run: ``{"may_begin": RUN_ID}``
5. host: ``{"begin": 14.2}``, the seconds left of the attempt's lease, or ``null`` if the run must
   not begin; then the driver begins no other run of the attempt either
6. driver, for the runs of a piece that staged output, while the next one is under way:
   ``{"may_publish": [RUN_ID, …]}``, and again before each commit to a table; host: ``{"publish": true}``
   if Postgres has all of it accepted, else ``false``
7. driver, when its reports are acknowledged: ``{"done": {"reported": true}}``. Then 3 again; the
   session is released meanwhile.

At any time, the driver sends ``{"report": {"number": 7, "trace": null, "report": {…}}}``, a message of
the contract without what the host knows. The host publishes it, and says ``{"acknowledged": 7}`` once
Kafka has this and all earlier ones, or ``{"undelivered": "why"}``. While Kafka is away, ``{"renewed": 7}`` says that
the heartbeat with this number has renewed the lease in Postgres. For the user's code, the driver
sends ``{"code": "SHA256"}``; the host answers with ``{"code": {"folder": "/…"}}``, with the ``archive`` in
base64 to a driver on another machine, or with the ``error``.

A driver that gives up sends ``{"lost": {"why": "…", "shared": false}}`` as its last message; it is shared if the whole
Spark server is lost, which other attempts use, too. If a task timed out and does not
end, ``{"timed_out": {"task": "a", "try_number": 1, "error": {…}}}`` comes before it, after all reports
were acknowledged, and instead of it if the task's code ended the process, with ``"everywhere": true``
if it does so in every run (an import); the host reports the rest once the driver has exited.

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
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import IO, Any, Callable

if not __package__:
    # Started by its path. The working directory is searched too, as with ``python -m``.
    sys.path[0:1] = [str(Path(__file__).absolute().parents[2]), str(Path.cwd())]

from retrofill.driver import application
from retrofill.driver.application import ask_first
from retrofill.driver.config import Config, set_up, settings
from retrofill.driver.forking import Notes, Parent
from retrofill.driver.process import Conversation, Ending, Output, end_with_host
from retrofill.driver.serve import serve_attempt
from retrofill.driver.session import ConnectSessions, Sessions, choose_connect, connect_apart
from retrofill.masking import masked_remote
from retrofill.protocol.facts import SparkApplication, as_json
from retrofill.protocol.launch import Launch
from retrofill.spark.loss import line_of
from retrofill.tracing import preload

# A server that starts answers late; one that is gone is tried again by the next process.
REACH_RETRIES = {"max_retries": 5, "initial_backoff": 50, "backoff_multiplier": 2.0, "max_backoff": 1000}
REACH_SECONDS = 30.0


def main() -> None:
    incoming, outgoing = take_pipes()
    output = Output.of_pool()
    config = settings(incoming)
    choose_connect(config)
    warm_up()

    def sessions_of(known: SparkApplication | None, launch: Launch) -> Sessions:
        return ConnectSessions(config, application.ConnectApplication(known), launch)

    Parent(incoming, outgoing, partial(first, config), partial(attempt, config, output, sessions_of)).serve()


def first(config: Config, incoming: IO[str], outgoing: IO[str], notes: Notes, _: None) -> None:
    """The driver is ready once Spark has answered. What that said of its application is kept."""
    ending = Ending(notes.leave)
    end_with_host(ending)
    set_up(config)
    Conversation(incoming, outgoing, ending)
    spark = application.ConnectApplication()
    reach(config.spark_remote, ending.end, spark)
    known = None if spark.application is None else as_json(spark.application)
    notes.ready(application.versions(spark.version), known)
    ask_first(config.spark_ui)


def reach(remote: str | None, fail: Callable[[str], object], server: application.ConnectApplication) -> None:
    """Make a round trip to Spark Connect; ``fail`` gets why there was none, and ends the process.

    ``server`` learns its application. Without an address there is nothing to reach: such a driver only publishes.
    """
    if remote is None:
        return
    where = f"Spark at {masked_remote(remote)} does not answer"
    late = threading.Timer(REACH_SECONDS, fail, [f"{where}: no reply within {REACH_SECONDS:.0f} s"])
    late.daemon = True
    late.start()
    try:
        _ask(remote, server)
    except ImportError:
        # Of a package that is imported late: not Spark is to blame.
        late.cancel()
        raise
    except Exception as e:  # noqa: BLE001 - whatever it is, no attempt could use this process
        fail(f"{where}: {line_of(e)}")
    late.cancel()


def _ask(remote: str, server: application.ConnectApplication) -> None:
    session = connect_apart(remote, REACH_RETRIES)
    # A session whose server did not answer would stay this process's default one.
    with closing(session.client):
        server.version = session.version
        server.ask(session)
        session.stop()


def attempt(
    config: Config,
    output: Output,
    sessions_of: Callable[[SparkApplication | None, Launch], Sessions],
    incoming: IO[str],
    outgoing: IO[str],
    notes: Notes,
    known: dict[str, Any] | None,
) -> None:
    """Serve one attempt. ``known``: the application that Spark last named."""
    spark = None if known is None else SparkApplication(**known)
    serve_attempt(config, partial(sessions_of, spark), incoming, outgoing, notes, output=output)


def take_pipes() -> tuple[int, int]:
    """Reserve stdin and stdout for the host: user code reads nothing and prints to stderr."""
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.flush()
    return incoming, outgoing


def warm_up() -> None:
    """Import slow modules in advance."""
    import pyspark.sql.connect.session
    import pyspark.sql.functions
    import pyspark.sql.types  # noqa: F401

    preload()


if __name__ == "__main__":
    main()
