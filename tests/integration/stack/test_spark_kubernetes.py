"""The requests that Spark's own Kubernetes client makes when a run is submitted in cluster mode,
recorded by a fake API server.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.support.definitions import daily
from tests.support.hosts import DriverEnd, Ends

from retrofill.protocol.launch import LaunchedRun
from retrofill.states import AttemptMode
from retrofill_core.driver_package import SOURCE, entry
from retrofill_core.settings import Settings
from run_starter.executors import LaunchRequest, submission
from run_starter.executors.command import Drivers
from run_starter.executors.spark_submit import SparkSubmit

pytestmark = [pytest.mark.spark, pytest.mark.long]
SECONDS = 180.0
NAMESPACE = "backfills"


class Api(ThreadingHTTPServer):
    """A fake API server that refuses everything; ``asked`` holds the objects it was asked to
    create.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Refuse)
        self.asked: list[tuple[str, dict[str, Any]]] = []

    @property
    def address(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.server_port}"


class Refuse(BaseHTTPRequestHandler):
    """Answers 404 to reads and refuses every creation."""

    server: Api

    def do_GET(self) -> None:
        self._answer(404)

    def do_DELETE(self) -> None:
        self._answer(404)

    def do_POST(self) -> None:
        self._note()
        self._answer(403)

    def do_PATCH(self) -> None:
        self._note()
        self._answer(403)

    def _note(self) -> None:
        self.server.asked.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

    def _answer(self, status: int) -> None:
        body = json.dumps({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Discard the request log."""


@pytest.fixture
def api() -> Iterator[Api]:
    """A listening server."""
    with Api() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_pod_of_a_driver_is_as_the_settings_say(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETROFILL_KAFKA_BOOTSTRAP_SERVERS", "kafka:9092")
    monkeypatch.setenv("RETROFILL_POSTGRES_DSN", "postgresql://not/the-drivers")
    settings = Settings.model_validate(
        {
            "home": tmp_path,
            "spark_submit_master": f"k8s://{api.address}",
            "spark_submit_deploy_mode": "cluster",
            "driver_host": "starter.example",
            "kafka_password": "hunter2",
            "spark_submit_conf": {
                "spark.kubernetes.namespace": NAMESPACE,
                "spark.kubernetes.container.image": "ours:1",
                "spark.kubernetes.authenticate.driver.serviceAccountName": "retrofill-driver",
                "spark.kubernetes.driver.secretKeyRef.API_KEY": "theirs:key",
            },
        }
    )
    day = datetime(2020, 1, 1, tzinfo=UTC)
    host = Ends()
    executor = SparkSubmit(Drivers(settings), host)
    run = LaunchedRun(1, 1, day, day)
    executor.launch(LaunchRequest("b", 1, AttemptMode.EACH, (run,), daily(), {}, settings.lease_seconds))
    # It never connected, and now it cannot.
    assert host.ended.get(timeout=SECONDS) == DriverEnd(1, begun=None, reported=False, exited=True)
    ((path, pod),) = [(path, made) for path, made in api.asked if made["kind"] == "Pod"]
    assert path == f"/api/v1/namespaces/{NAMESPACE}/pods"
    assert pod["spec"]["serviceAccountName"] == "retrofill-driver"
    (container,) = [each for each in pod["spec"]["containers"] if each["image"] == "ours:1"]
    assert f"local://{entry(SOURCE.parent, submission.PROGRAM)}" in container["args"]
    environment = {each["name"]: each for each in container["env"]}
    assert environment["RETROFILL_DRIVER_SOCKET"]["value"].startswith("starter.example:")
    secret = environment["API_KEY"]["valueFrom"]["secretKeyRef"]
    assert (secret["name"], secret["key"]) == ("theirs", "key")
    ours = {name for name in environment if name.startswith("RETROFILL_")}
    assert ours == {"RETROFILL_DRIVER_SOCKET", "RETROFILL_DRIVER_TOKEN"}
    assert not [secret for secret in ("hunter2", "postgresql://") if secret in str(api.asked)]
