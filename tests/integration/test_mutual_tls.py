"""A Kafka that authenticates clients by certificate: a driver has none, and its host publishes its reports."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewTopic
from tests.integration.driver.world import Recorder
from tests.support import tls
from tests.support.definitions import daily
from tests.support.events import read_to_end
from tests.support.installation import until
from tests.support.servers import Servers
from tests.unit.driver.pooled import pids

from retrofill.protocol.launch import LaunchedRun
from retrofill.states import AttemptMode
from retrofill_core.bus.clients import admin, producer, reader
from retrofill_core.contract.topics import CLI_CLIENT, OPERATOR, RUN_STARTER, Topic
from retrofill_core.settings import Settings
from retrofill_tools.admin.access import create_users, table
from retrofill_tools.stack.layout import Layout
from run_starter.executors import LaunchRequest
from run_starter.executors.command import Drivers
from run_starter.executors.local_pool import LocalPool

PREFIX = "mutual."
SECONDS = 20.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tls.Authority:
    return tls.Authority.make(tmp_path_factory.mktemp("mutual") / "own", "own")


@pytest.fixture(scope="module")
def administrator(servers: Servers, authority: tls.Authority) -> Iterator[Settings]:
    """Settings of the administrator of a broker where each user has only its own ACLs."""
    identity = Layout(servers.home).identity()
    assert identity is not None
    with tls.broker(authority.folder / "broker", identity, authority, "IP:127.0.0.1", mutual=True) as clients:
        users = {who: f"CN={who}" for who in table(Settings())}
        settings = clients.model_copy(update={"topic_prefix": PREFIX, "kafka_users": users})
        topics = [
            NewTopic(f"{PREFIX}{topic}", 1, 1) for topic in (Topic.RUN_REPORTS, Topic.RUN_EVENTS, Topic.INTERVAL_STATES)
        ]
        client = admin(settings, "test")
        for future in client.create_topics(topics).values():
            future.result()
        create_users(settings)
        yield settings


@pytest.fixture
def starter(
    administrator: Settings, authority: tls.Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """The settings of a run-starter with its own key, which its environment names too."""
    by_certificate = tls.by_certificate(authority, RUN_STARTER.name)
    settings = administrator.model_copy(update={**by_certificate, "home": tmp_path, "partitions": 1, "driver_slots": 1})
    for name in ("kafka_bootstrap_servers", "kafka_security_protocol", "kafka_ssl_certificate", "kafka_ssl_key"):
        monkeypatch.setenv(f"RETROFILL_{name}".upper(), str(getattr(settings, name)))
    return settings


def publication() -> LaunchRequest:
    """An attempt that needs no Spark: the run was accepted, and had no output."""
    day = datetime(2020, 1, 1, tzinfo=UTC)
    run = LaunchedRun(1, 2, day, day.replace(day=2), accepted_attempt=6)
    return LaunchRequest("b", 7, AttemptMode.PUBLISH, (run,), daily(), {}, lease_seconds=60.0)


def reports(settings: Settings, authority: tls.Authority) -> list[str]:
    """The types of all reports on the topic, read by the operator."""
    operator = settings.model_copy(update=tls.by_certificate(authority, OPERATOR))
    consumer = reader(operator, CLI_CLIENT)
    try:
        return [
            event.body["type"] for event in read_to_end(consumer, f"{PREFIX}{Topic.RUN_REPORTS}", settings.partitions)
        ]
    finally:
        consumer.close()


def refused(settings: Settings, topic: Topic) -> KafkaError | None:
    """The error that the broker returns for a message from this client."""
    said: list[KafkaError | None] = []
    client = producer(settings, "test")
    client.produce(f"{PREFIX}{topic}", b"x", on_delivery=lambda error, _: said.append(error))
    assert client.flush(SECONDS) == 0
    return said[0]


@pytest.mark.long
def test_a_driver_has_no_key_and_its_reports_arrive(starter: Settings, authority: tls.Authority) -> None:
    host = Recorder(starter)
    pool = LocalPool(Drivers(starter), host)
    try:
        until(lambda: pool.condition().room == 1, "the driver is ready", seconds=60)
        (process,) = map(psutil.Process, pids(pool))
        environment, command = process.environ(), process.cmdline()
        pool.launch(publication())
        assert host.ended().reported
    finally:
        pool.close()
        host.close()
    # What it was started with, and the arguments of the program that it runs.
    given = [*environment, *environment.values(), *command]
    assert any("driver-package" in each for each in command)
    assert not [each for each in given if each.startswith("RETROFILL_") or "kafka" in each.lower()]
    assert not [each for each in given if str(starter.kafka_ssl_key) in each]
    assert reports(starter, authority) == ["RunBegan", "RunReported", "AttemptEnded"]


@pytest.mark.long
def test_a_client_has_the_rights_of_its_certificate_and_none_without_one(
    starter: Settings, authority: tls.Authority
) -> None:
    assert refused(starter, Topic.RUN_EVENTS) is None
    operator = starter.model_copy(update=tls.by_certificate(authority, OPERATOR))
    error = refused(operator, Topic.INTERVAL_STATES)
    assert error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    nobody = starter.model_copy(update={"kafka_ssl_certificate": None, "kafka_ssl_key": None})
    with pytest.raises(KafkaException):
        admin(nobody, "test").list_topics(timeout=2)
