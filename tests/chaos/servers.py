"""A scenario's own servers, which may be killed, and proxies that cut them off from one service."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from retrofill_core.bus.clients import admin
from retrofill_tools.stack.layout import KAFKA, POSTGRES, Layout
from retrofill_tools.stack.ports import held_port
from retrofill_tools.stack.supervision import Supervisor
from tests.support.installation import Installation, until
from tests.support.proxy import Proxy
from tests.support.servers import Servers

LISTENER = "LINE"


class OwnServers(Servers):
    """Embedded Kafka and Postgres, which supervisord restarts whenever they exit."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.layout = Layout(home.absolute())
        self._line_ports: tuple[int, int] | None = None

    def pid(self, part: str) -> int:
        """The pid of a server."""
        pid = self._supervisor().status()[part].pid
        assert pid is not None, f"{part} does not run"
        return pid

    def pid_or_none(self, part: str) -> int | None:
        """The pid of a server, or ``None`` if it is not running."""
        return self._supervisor().status()[part].pid

    def supervisor_pid(self) -> int:
        """The pid of supervisord."""
        return self._supervisor().pid()

    def up(self) -> None:
        """Start the stack again, as ``retrofill up`` does."""
        self._stack.up(lambda *_: None, lambda _: None)

    def stop_part(self, part: str) -> None:
        """Stop a server cleanly."""
        self._supervisor().stop_parts([part])

    def start_part(self, part: str) -> None:
        """Start a server and wait until it answers."""
        self._supervisor().start_part(part)
        self.wait_answers(part)

    def run_with(self, part: str, environment: dict[str, str]) -> None:
        """Restart a server with additional environment."""
        config = self.layout.run / "supervisord.conf"
        program = f"[program:{part}]\n"
        more = ",".join(f'{name}="{value}"' for name, value in environment.items())
        config.write_text(config.read_text().replace(program, f"{program}environment={more}\n"))
        self.stop_part(part)
        rpc = self._supervisor()._rpc()
        rpc.reloadConfig()
        rpc.removeProcessGroup(part)
        rpc.addProcessGroup(part)
        self.start_part(part)

    def kill(self, part: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill a server; returns once it has exited. SIGQUIT is Postgres' immediate shutdown."""
        pid = self.pid(part)
        os.kill(pid, number)
        until(lambda: self._supervisor().status()[part].pid != pid, f"{part} is gone")

    def wait_answers(self, part: str) -> float:
        """Wait until a server answers; returns the seconds that took."""
        began = time.monotonic()
        until(self._kafka_answers if part == KAFKA else self._postgres_answers, f"{part} answers", seconds=120)
        return time.monotonic() - began

    @contextmanager
    def kafka_line(self) -> Iterator[Proxy]:
        """A proxy to Kafka. A separate listener advertises the proxy, so its clients stay on it."""
        with ExitStack() as ending:
            with held_port() as port:
                line = ending.enter_context(Proxy(("127.0.0.1", port)))
                self._listen_also(port, line.port)
            yield line

    def _listen_also(self, port: int, fields: int) -> None:
        """Restart the broker with another listener that advertises the proxy's address."""
        path = self.layout.run / "kafka.properties"
        values = dict(line.split("=", 1) for line in path.read_text().splitlines())
        for name, where in (("listeners", port), ("advertised.listeners", fields)):
            kept = [each for each in values[name].split(",") if not each.startswith(LISTENER)]
            values[name] = ",".join([*kept, f"{LISTENER}://127.0.0.1:{where}"])
        values["listener.security.protocol.map"] = f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{LISTENER}:PLAINTEXT"
        values["inter.broker.listener.name"] = "PLAINTEXT"
        path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        self.kill(KAFKA, signal.SIGTERM)
        self.wait_answers(KAFKA)

    def _supervisor(self) -> Supervisor:
        identity = self.layout.identity()
        assert identity is not None
        return Supervisor(self.layout, identity)

    def _kafka_answers(self) -> bool:
        try:
            admin(self.settings, "chaos").list_topics(timeout=2)
        except Exception:  # noqa: BLE001 - any error means that it does not answer yet
            return False
        return True

    def _postgres_answers(self) -> bool:
        try:
            with psycopg.connect(self.settings.dsn_of("owner"), connect_timeout=2) as conn:
                conn.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True


def postgres_address(made: Installation) -> tuple[str, int]:
    """The host and port of Postgres."""
    parts = conninfo_to_dict(made.settings.dsn_of("owner"))
    return str(parts["host"]), int(str(parts["port"]))


def through_postgres_line(made: Installation, service: str, line: Proxy) -> dict[str, str]:
    """Environment that makes a service reach Postgres through a proxy."""
    dsns = {name: dsn.get_secret_value() for name, dsn in made.settings.postgres_service_dsns.items()}
    dsns[service] = make_conninfo(dsns[service], port=line.port)
    return {"RETROFILL_POSTGRES_SERVICE_DSNS": json.dumps(dsns)}


def through_kafka_line(line: Proxy) -> dict[str, str]:
    """Environment that makes a service reach Kafka through a proxy."""
    return {"RETROFILL_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{line.port}"}


__all__ = ["KAFKA", "POSTGRES", "OwnServers", "postgres_address", "through_kafka_line", "through_postgres_line"]
