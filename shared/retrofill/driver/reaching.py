"""Whether Spark answers, which a warm driver finds out before it says that it is ready."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Callable

from retrofill.driver.application import ConnectApplication
from retrofill.driver.session import connect_apart
from retrofill.masking import masked_remote
from retrofill.spark.loss import line_of

# A server that starts answers late; one that is gone is tried again by the next process.
RETRIES = {"max_retries": 5, "initial_backoff": 50, "backoff_multiplier": 2.0, "max_backoff": 1000}
SECONDS = 30.0


def reach(remote: str | None, fail: Callable[[str], object], server: ConnectApplication) -> None:
    """Make a round trip to Spark Connect; ``fail`` gets why there was none, and ends the process.

    ``server`` learns its application. Without an address there is nothing to reach: such a driver only publishes.
    """
    if remote is None:
        return
    where = f"Spark at {masked_remote(remote)} does not answer"
    late = threading.Timer(SECONDS, fail, [f"{where}: no reply within {SECONDS:.0f} s"])
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


def _ask(remote: str, server: ConnectApplication) -> None:
    session = connect_apart(remote, RETRIES)
    # A session whose server did not answer would stay this process's default one.
    with closing(session.client):
        server.version = session.version
        server.ask(session)
        session.stop()
