"""A Kafka with TLS and passwords: everything works, and each misconfiguration is reported in one
line.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from pydantic import SecretStr
from tests.support import tls
from tests.support.definitions import daily
from tests.support.installation import ROOT, Installation, until
from tests.support.servers import Servers
from tests.support.tiers import some

from retrofill_core.bus.clients import admin, explain, producer, reader
from retrofill_core.contract.topics import PLANNER, REQUESTER, Topic
from retrofill_core.settings import Settings
from retrofill_tools.stack.layout import Layout

SECONDS = 20.0
SILENT = logging.Logger("the tests' librdkafka", logging.CRITICAL + 1)
COMMAND = "from retrofill_tools.cli.main import run; run()"


@dataclass(frozen=True)
class Encrypted:
    """A broker with a certificate from ``authority`` for 127.0.0.1 only, and another authority that
    it does not trust.
    """

    servers: Servers
    clients: Settings
    authority: tls.Authority
    other: tls.Authority

    def installation(self) -> Installation:
        """A new installation on this broker."""
        kafka = ("bootstrap_servers", "security_protocol", "ssl_ca", "acls", "passwords")
        return self.servers.installation(**{f"kafka_{name}": getattr(self.clients, f"kafka_{name}") for name in kafka})


@pytest.fixture(scope="module")
def encrypted(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    folder = tmp_path_factory.mktemp("tls")
    authority, other = (tls.Authority.make(folder / name, name) for name in ("own", "other"))
    identity = Layout(servers.home).identity()
    assert identity is not None
    with tls.broker(folder / "broker", identity, authority, "IP:127.0.0.1") as clients:
        yield Encrypted(servers, clients, authority, other)


@pytest.fixture(scope="module")
def house(encrypted: Encrypted) -> Iterator[Installation]:
    made = encrypted.installation()
    yield made
    made.close()


@pytest.mark.long
def test_services_work_over_tls_each_as_itself(house: Installation) -> None:
    for name in ("backfill-planner", "instant-starter"):
        house.start(name)
    house.apply(daily())
    id = house.request("p", "2020-01-01", "2020-01-03")
    assert house.wait_state(id, "succeeded", "failed") == "succeeded"
    house.wait_published()
    assert len([e for e in house.events(Topic.RUN_EVENTS) if e.body.get("type") == "RunSucceeded"]) == 3


@pytest.mark.long
def test_a_producer_and_a_consumer_talk_to_a_broker_that_they_trust_only(
    house: Installation, encrypted: Encrypted
) -> None:
    settings = house.settings.acting_as(PLANNER.name)
    topic = f"{settings.topic_prefix}{Topic.BACKFILL_EVENTS}"
    trusting = producer(settings, "test")
    trusting.produce(topic, b"x")
    assert trusting.flush(SECONDS) == 0
    wary = settings.model_copy(update={"kafka_ssl_ca": encrypted.other.certificate})
    for make in (producer, reader):
        heard: list[KafkaError] = []
        client = make(wary, "retrofill-cli", error_cb=heard.append, logger=SILENT)
        with pytest.raises(KafkaException):
            client.list_topics(timeout=2)
        # Errors are delivered by ``poll``.
        client.poll(1.0)
        assert KafkaError._SSL in {error.code() for error in heard}


def wrong(encrypted: Encrypted, folder: Path) -> dict[str, tuple[dict[str, object], str]]:
    """Each misconfiguration and the message it must produce."""
    no_pem = folder / "ca.pem"
    no_pem.write_text("not a certificate")
    address = encrypted.clients.bootstrap_servers()
    return {
        "another authority": (
            {"kafka_ssl_ca": encrypted.other.certificate},
            f"TLS with {address} failed: its certificate is not from an authority in RETROFILL_KAFKA_SSL_CA"
            f" ({encrypted.other.certificate})",
        ),
        "the machine's authorities": ({"kafka_ssl_ca": None}, "RETROFILL_KAFKA_SSL_CA (not set)"),
        "another name": (
            {"kafka_bootstrap_servers": address.replace("127.0.0.1", "localhost")},
            "TLS with localhost:",
        ),
        "no file": (
            {"kafka_ssl_ca": folder / "nowhere.pem"},
            f"{folder / 'nowhere.pem'} does not exist: check RETROFILL_KAFKA_SSL_CA",
        ),
        "no certificate": ({"kafka_ssl_ca": no_pem}, "is not in PEM format: check RETROFILL_KAFKA_SSL_CA"),
        "no TLS": (
            {"kafka_security_protocol": "SASL_PLAINTEXT"},
            f"no broker at {address} answers over SASL_PLAINTEXT: is it running",
        ),
        "a wrong password": (
            {"kafka_password": SecretStr("hunter2"), "kafka_passwords": {}},
            "requester was refused: check RETROFILL_KAFKA_PASSWORD",
        ),
        "no password": (
            {"kafka_password": None, "kafka_passwords": {}},
            "SASL_SSL needs a login: set RETROFILL_KAFKA_USERNAME",
        ),
        "no such host": ({"kafka_bootstrap_servers": "nowhere.invalid:9092"}, "no such host in nowhere.invalid:9092"),
    }


CASES = ["another authority", "the machine's authorities", "another name", "no file", "no certificate", "no TLS",
         "a wrong password", "no password", "no such host"]  # fmt: skip
# Nothing is waited for.
QUICK = ["no file", "no certificate", "no password"]


@pytest.mark.parametrize("case", some(CASES, *QUICK, "another authority", "a wrong password"))
def test_what_is_wrong_is_said_in_one_line(
    case: str, house: Installation, encrypted: Encrypted, tmp_path: Path
) -> None:
    changed, said = wrong(encrypted, tmp_path)[case]
    settings = house.settings.acting_as(REQUESTER).model_copy(update=changed)
    with pytest.raises(KafkaException) as caught:
        admin(settings, "test").list_topics(timeout=2)
    line = explain(settings, caught.value)
    assert said in line
    assert "\n" not in line
    assert "hunter2" not in line


def test_a_broker_that_answers_is_not_said_to_be_away(house: Installation) -> None:
    late = KafkaError(KafkaError._TIMED_OUT)
    assert explain(house.settings.acting_as(REQUESTER), KafkaException(late)) == late.str()


def run(house: Installation, changed: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command by hand with some variables changed."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, **house.environment(), **changed},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize("command", some(["init", "dead-letters list"], "init"))
def test_a_command_says_it_in_one_line(command: str, house: Installation, encrypted: Encrypted) -> None:
    changed = {
        "RETROFILL_KAFKA_SSL_CA": str(encrypted.other.certificate),
        "RETROFILL_KAFKA_USERNAME": "kafka-admin",
        "RETROFILL_KAFKA_PASSWORD": "anything",
    }
    done = run(house, changed, "-c", COMMAND, *command.split())
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(
        f"retrofill: Kafka cannot be used: TLS with {encrypted.clients.bootstrap_servers()} failed: "
    )


def test_a_service_without_its_authorities_file_does_not_start(house: Installation, tmp_path: Path) -> None:
    done = run(house, {"RETROFILL_KAFKA_SSL_CA": str(tmp_path / "nowhere.pem")}, "-m", PLANNER.package)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1] == (
        "backfill-planner: cannot create a Kafka client: "
        f"{tmp_path / 'nowhere.pem'} does not exist: check RETROFILL_KAFKA_SSL_CA"
    )


@pytest.mark.long
def test_a_service_that_does_not_trust_the_broker_waits_and_says_why(house: Installation, encrypted: Encrypted) -> None:
    replica = house.start(PLANNER.name, wait=False, RETROFILL_KAFKA_SSL_CA=str(encrypted.other.certificate))
    until(lambda: "waiting_for_servers" in replica.said(), "it says that it waits", replica.said)
    assert "is not from an authority in RETROFILL_KAFKA_SSL_CA" in replica.said()
    assert "Traceback" not in replica.said()
    replica.stop()
    assert replica.process.returncode == 0
