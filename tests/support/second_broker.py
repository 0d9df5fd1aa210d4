"""A second broker beside that of the tests' servers, which partitions can lose."""

from __future__ import annotations

import subprocess

from retrofill.spark import java
from retrofill_core.bus.clients import admin
from retrofill_tools.stack import kafka, ports, processes
from retrofill_tools.stack.layout import Layout
from retrofill_tools.stack.maven import Maven
from tests.support.installation import until
from tests.support.servers import Servers


class SecondBroker:
    """Joins the cluster of ``servers``; it leaves and comes back with its data."""

    def __init__(self, servers: Servers) -> None:
        layout = Layout(servers.home)
        identity = layout.identity()
        assert identity is not None
        self._servers = servers
        self._environment = processes.environment(layout, identity.id)
        runtime = java.find(servers.settings)
        jars = Maven(servers.settings, runtime, lambda _: None, self._environment).fetch("Kafka", kafka.BROKER)
        with ports.Reservations() as reserved:
            listener = f"PLAINTEXT://127.0.0.1:{reserved.choose(23092, None)}"
        properties = layout.run / "second-broker.properties"
        first = dict(line.split("=", 1) for line in (layout.run / "kafka.properties").read_text().splitlines())
        own = {"process.roles": "broker", "node.id": 2, "listeners": listener, "advertised.listeners": listener}
        kafka.write(properties, {**first, **own, "log.dirs": servers.home / "second-broker"})
        kafka.format_storage(runtime, jars, identity.cluster_id, properties, self._environment)
        self._command = [
            str(runtime),
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-cp",
            f"{jars}/*",
            "kafka.Kafka",
            str(properties),
        ]
        self._log = servers.home / "second-broker.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until clients know it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )
        self._brokers_are(2)

    def stop(self) -> None:
        """Stop it, if it runs, and wait until no new partition can be placed on it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None
            self._brokers_are(1)

    def _brokers_are(self, count: int) -> None:
        client = admin(self._servers.settings, "test")
        until(lambda: len(client.list_topics(timeout=10).brokers) == count, f"{count} brokers", self._log.read_text)
