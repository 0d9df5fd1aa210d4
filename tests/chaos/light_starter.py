"""The real run-starter with drivers that need no Spark: ``python -m tests.chaos.light_starter``."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any
from unittest.mock import patch

from confluent_kafka import Producer

from retrofill_core.bus import clients, service
from retrofill_core.contract.topics import RUN_STARTER
from retrofill_core.settings import Settings
from run_starter import handler
from run_starter.executors import build
from run_starter.executors.local_pool import LocalPool
from run_starter.handler import CHANNELS, StarterHandler

DRIVER = (sys.executable, "-m", "tests.chaos.light_driver")


def producer_of(settings: Settings, client_id: str, **more: Any) -> Producer:
    """The producer of the drivers' reports, on a Kafka connection that a fault can cut for it only."""
    address = os.environ.get("CHAOS_DRIVERS_KAFKA")
    own = settings if address is None else settings.model_copy(update={"kafka_bootstrap_servers": address})
    return clients.producer(own, client_id, **more)


if __name__ == "__main__":
    patch.object(handler, "producer", producer_of).start()
    patch.object(build, "LocalPool", partial(LocalPool, command=DRIVER)).start()
    if "CHAOS_HOST" in os.environ:
        # As in a container, where the next process has the host name and the process id of the last one.
        patch.object(service, "name_of_instance", lambda _: os.environ["CHAOS_HOST"]).start()
    sys.exit(service.run_service(RUN_STARTER, StarterHandler, CHANNELS))
