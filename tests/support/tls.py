"""A Kafka that talks TLS, and certificates for it: made anew by ``openssl`` for each test session."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from retrofill.bus.clients import admin
from retrofill.settings import Settings
from retrofill.stack import java, kafka, kafka_auth, ports, processes
from retrofill.stack.layout import Identity, Layout
from tests.support.installation import until

ADDRESS = "127.0.0.1"


@dataclass(frozen=True)
class Authority:
    """An authority of certificates in a folder of its own."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, name: str) -> Authority:
        """A new one. Skips the test where there is no openssl."""
        if shutil.which("openssl") is None:
            pytest.skip("no openssl on the PATH, which makes the certificates")
        folder.mkdir()
        made = cls(folder)
        _openssl(
            "req", "-x509", *_new_key(folder / "ca.key"), "-days", "2", "-subj", f"/CN={name}",
            "-addext", "basicConstraints=critical,CA:TRUE", "-out", str(made.certificate),
        )  # fmt: skip
        return made

    @property
    def certificate(self) -> Path:
        """Its own certificate, which clients trust."""
        return self.folder / "ca.pem"

    def issue(self, names: str) -> Path:
        """Key and certificate of a server, in one PEM file; ``names`` as in ``IP:127.0.0.1,DNS:localhost``."""
        key, request, certificate = (self.folder / f"server.{end}" for end in ("key", "csr", "crt"))
        extensions = self.folder / "server.ext"
        extensions.write_text(f"subjectAltName={names}\n")
        _openssl("req", "-new", *_new_key(key), "-subj", "/CN=broker", "-out", str(request))
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self.folder / "ca.key"),
            "-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", str(certificate),
        )  # fmt: skip
        both = self.folder / "server.pem"
        both.touch(mode=0o600)
        both.write_text(key.read_text() + certificate.read_text())
        return both


def _new_key(path: Path) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-keyout", str(path)]


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@contextmanager
def broker(home: Path, identity: Identity, authority: Authority, names: str) -> Iterator[Settings]:
    """A broker with users, rights and TLS, as the embedded one is but for that; the settings of its clients."""
    settings = Settings(home=home, embedded_kafka_auth=True)
    layout = Layout(home)
    layout.make()
    environment = processes.environment(layout, identity.id)
    runtime = java.find(settings)
    jars = kafka.fetch(settings, runtime, lambda _: None, environment)
    reserved = ExitStack()
    chosen = _choose(reserved.enter_context(ports.Reservations()))
    command = kafka.prepare(layout, identity, settings, runtime, jars, chosen, environment)
    _talk_tls(layout.run / "kafka.properties", authority, names)
    with layout.log("kafka").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        clients = Settings(
            home=home,
            kafka_bootstrap_servers=f"{ADDRESS}:{chosen['kafka']}",
            **{
                **kafka_auth.endpoints(identity.passwords),
                "kafka_security_protocol": "SASL_SSL",
                "kafka_ssl_ca": authority.certificate,
            },
        )
        _wait(process, kafka_auth.as_admin(clients, identity.passwords), layout)
        reserved.close()
        yield clients
    finally:
        reserved.close()
        process.terminate()
        process.wait(60)


def _choose(reserved: ports.Reservations) -> dict[str, int]:
    return {name: reserved.choose(first, None) for name, first in (("kafka", 21092), ("kafka_controller", 21093))}


def _talk_tls(properties: Path, authority: Authority, names: str) -> None:
    """The listener of the clients talks TLS."""
    lines = dict(line.split("=", 1) for line in properties.read_text().splitlines())
    lines |= {
        "listener.security.protocol.map": f"{kafka_auth.LISTENER}:SASL_SSL,CONTROLLER:SASL_PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue(names)),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
    }
    properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))


def _wait(process: subprocess.Popen[bytes], settings: Settings, layout: Layout) -> None:
    client = admin(settings, "test")

    def answers() -> bool:
        if process.poll() is not None:
            return True
        try:
            return bool(client.list_topics(timeout=5).brokers)
        except KafkaException:
            return False

    until(answers, "the broker answers")
    assert process.poll() is None, layout.log("kafka").read_text()[-3000:]
