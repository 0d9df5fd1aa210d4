"""A Kafka that authenticates clients by certificate: a driver uses its own key and never gets the
run-starter's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic
from tests.support import tls
from tests.support.servers import Servers

from retrofill.admin.access import table
from retrofill.admin.users import create_users
from retrofill.bus.clients import admin, producer
from retrofill.contract.topics import DRIVER, RUN_STARTER, Topic
from retrofill.settings import NotConfigured, Settings
from retrofill.stack.layout import Layout
from run_starter.executors import processes
from run_starter.executors.local_pool import MODULE
from run_starter.executors.login import login

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
        topics = [NewTopic(f"{PREFIX}{topic}", 1, 1) for topic in (Topic.RUN_REPORTS, Topic.RUN_EVENTS)]
        client = admin(settings, "test")
        for future in client.create_topics(topics).values():
            future.result()
        create_users(settings)
        yield settings


def environment(settings: Settings) -> dict[str, str]:
    """The run-starter's environment variables."""
    names = ("home", "kafka_bootstrap_servers", "kafka_security_protocol", "topic_prefix")
    files = (
        "kafka_ssl_ca",
        "kafka_ssl_certificate",
        "kafka_ssl_key",
        "kafka_driver_ssl_certificate",
        "kafka_driver_ssl_key",
    )
    return {f"RETROFILL_{name}".upper(): str(getattr(settings, name)) for name in (*names, *files)}


@pytest.fixture
def starter(
    administrator: Settings, authority: tls.Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """The settings of a run-starter with its own key, and another key for its drivers."""
    certificate, key = authority.issue_to(DRIVER)
    own = {"home": tmp_path, "kafka_driver_ssl_certificate": certificate, "kafka_driver_ssl_key": key}
    settings = administrator.model_copy(update={**tls.by_certificate(authority, RUN_STARTER.name), **own})
    for name, value in environment(settings).items():
        monkeypatch.setenv(name, value)
    return settings


def refused(settings: Settings, topic: Topic) -> KafkaError | None:
    """The error that the broker returns for a message from this client."""
    said: list[KafkaError | None] = []
    client = producer(settings, "test")
    client.produce(f"{PREFIX}{topic}", b"x", on_delivery=lambda error, _: said.append(error))
    assert client.flush(SECONDS) == 0
    return said[0]


def test_a_driver_has_a_key_of_its_own_and_its_own_rights_only(starter: Settings, authority: tls.Authority) -> None:
    process = processes.start((sys.executable, *MODULE), starter.home, login(starter), pipes=True)
    try:
        assert process.stdout is not None
        # By now it has connected or reported an error.
        assert json.loads(process.stdout.readline())["ready"]
        found = psutil.Process(process.pid).environ()
        assert "kafka_away" not in (starter.home / "logs" / "drivers.log").read_text()
    finally:
        process.kill()
        process.wait()
    assert str(starter.kafka_ssl_key) not in "".join(found.values())
    ours = {name: value for name, value in found.items() if name.startswith("RETROFILL_KAFKA_SSL_")}
    assert ours == {
        "RETROFILL_KAFKA_SSL_CA": str(authority.certificate),
        "RETROFILL_KAFKA_SSL_CERTIFICATE": str(starter.kafka_driver_ssl_certificate),
        "RETROFILL_KAFKA_SSL_KEY": str(starter.kafka_driver_ssl_key),
    }
    changed = {
        "kafka_ssl_certificate": starter.kafka_driver_ssl_certificate,
        "kafka_ssl_key": starter.kafka_driver_ssl_key,
    }
    driver = starter.model_copy(update=changed)
    assert refused(driver, Topic.RUN_REPORTS) is None
    error = refused(driver, Topic.RUN_EVENTS)
    assert error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert refused(starter, Topic.RUN_EVENTS) is None
    nobody = starter.model_copy(update={"kafka_ssl_certificate": None, "kafka_ssl_key": None})
    with pytest.raises(KafkaException):
        admin(nobody, "test").list_topics(timeout=2)


@pytest.mark.parametrize("case", ["no key", "the run-starter's key", "a copy of it"])
def test_no_driver_is_started_with_the_run_starters_key(case: str, starter: Settings, tmp_path: Path) -> None:
    assert starter.kafka_ssl_key is not None
    copy = tmp_path / "copy.key"
    copy.write_bytes(starter.kafka_ssl_key.read_bytes())
    key = {"no key": None, "the run-starter's key": starter.kafka_ssl_key, "a copy of it": copy}[case]
    with pytest.raises(NotConfigured, match="RETROFILL_KAFKA_DRIVER_SSL_KEY") as caught:
        login(starter.model_copy(update={"kafka_driver_ssl_key": key}))
    assert "\n" not in str(caught.value)
