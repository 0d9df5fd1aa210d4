"""Drivers on a real Kubernetes API server: their pods are named, killed, and awaited by the next attempt."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.definitions import daily
from tests.support.hosts import Ends
from tests.support.installation import until
from tests.support.kubernetes_api import KubernetesApi

from retrofill.protocol.launch import LaunchedRun
from retrofill.spark.clusters import tag_of
from retrofill.states import AttemptMode
from retrofill_core.settings import Settings
from run_starter.executors import LaunchRequest
from run_starter.executors.build import dispatch_of
from run_starter.executors.command import Drivers
from run_starter.executors.logs import AttemptLogs

pytestmark = [pytest.mark.spark, pytest.mark.long]
SECONDS = 240.0
NAMESPACE = "backfills"


class Starter:
    """The executors of a run-starter."""

    def __init__(self, api: KubernetesApi, home: Path) -> None:
        conf = {"spark.kubernetes.namespace": NAMESPACE, "spark.kubernetes.container.image": "ours:1", **api.login}
        settings = Settings.model_validate(
            {
                "home": home,
                "spark_submit_master": f"k8s://{api.address}",
                "spark_submit_deploy_mode": "cluster",
                "driver_host": "starter.example",
                "driver_slots": 1,
                "spark_submit_conf": conf,
            }
        )
        self.host = Ends()
        self._logs = AttemptLogs(settings, ())
        self.executors = dispatch_of(Drivers(settings), self.host, self._logs)

    def launch(self, attempt: int, *earlier: int) -> None:
        day = datetime(2020, 1, 1, tzinfo=UTC)
        definition = daily(executor="spark-submit")
        run = LaunchedRun(1, 1, day, day)
        self.executors.launch(
            LaunchRequest("b", attempt, AttemptMode.EACH, (run,), definition, {}, 60.0, None, earlier)
        )

    def close(self) -> None:
        self.executors.close()
        self._logs.close()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesApi]:
    server = KubernetesApi(tmp_path_factory.mktemp("kubernetes"))
    try:
        server.start(NAMESPACE)
        yield server
    finally:
        server.stop()


@pytest.fixture
def starters(api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Starter]]:
    """Two run-starters that submit to the same cluster."""
    # A client gives up soon.
    monkeypatch.setenv("KUBERNETES_REQUEST_RETRY_BACKOFFLIMIT", "1")
    made = [Starter(api, tmp_path / name) for name in ("one", "two")]
    yield made
    for each in made:
        each.close()
    for pod in api.pods(NAMESPACE):
        api.confirm_end(NAMESPACE, pod)


def waits(api: KubernetesApi, condition: Any, what: str) -> None:
    until(condition, what, lambda: f"{list(api.pods(NAMESPACE))} {api.log()}", SECONDS)


def test_the_pod_of_an_attempt_that_is_ended_is_deleted(api: KubernetesApi, starters: list[Starter]) -> None:
    starter, pod = starters[0], tag_of("", 1)
    starter.launch(1)
    waits(api, lambda: pod in api.pods(NAMESPACE), "the driver's pod is there")
    assert api.pods(NAMESPACE)[pod]["metadata"]["labels"]["spark-role"] == "driver"
    starter.executors.end(1)
    ended = starter.host.ended.get(timeout=SECONDS)
    assert (ended.attempt_id, ended.exited) == (1, True)
    # Reported at once: a driver that never connected can begin nothing.
    waits(api, lambda: pod not in api.pods(NAMESPACE), "the pod is deleted")


def test_the_next_attempt_waits_until_the_pod_of_an_earlier_one_has_ended(
    api: KubernetesApi, starters: list[Starter]
) -> None:
    first, second, other = (tag_of("", attempt) for attempt in (1, 2, 11))
    starters[0].launch(1)
    starters[0].launch(11)
    waits(api, lambda: {first, other} <= api.pods(NAMESPACE).keys(), "the first drivers' pods are there")
    api.bind(NAMESPACE, first)
    starters[1].launch(2, 1)
    waits(api, lambda: "deletionTimestamp" in api.pods(NAMESPACE)[first]["metadata"], "the pod is being deleted")
    # Its node has not confirmed it.
    assert second not in api.pods(NAMESPACE)
    assert [launch.key for launch in starters[1].executors.waiting()] == [2]
    api.confirm_end(NAMESPACE, first)
    waits(api, lambda: second in api.pods(NAMESPACE), "the second driver's pod is there")
    assert "deletionTimestamp" not in api.pods(NAMESPACE)[other]["metadata"]


def test_while_the_api_server_does_not_answer_the_next_attempt_waits_and_the_host_says_so(
    api: KubernetesApi, starters: list[Starter]
) -> None:
    first, second = (tag_of("", attempt) for attempt in (1, 2))
    starters[0].launch(1)
    waits(api, lambda: first in api.pods(NAMESPACE), "the first driver's pod is there")
    with api.stopped():
        starters[1].launch(2, 1)
        why = "earlier applications may still run: k8s://"
        until(lambda: (starters[1].executors.condition().note or "").startswith(why), "it says why", api.log, SECONDS)
        assert [launch.key for launch in starters[1].executors.waiting()] == [2]
    waits(api, lambda: second in api.pods(NAMESPACE), "the second driver's pod is there")
    assert first not in api.pods(NAMESPACE)
