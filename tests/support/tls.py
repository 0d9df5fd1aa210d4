"""A Kafka with TLS, and certificates for it, created with ``openssl`` for each test session."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from retrofill.spark import java
from retrofill_core.bus.clients import admin
from retrofill_core.settings import Settings
from retrofill_tools.stack import kafka, kafka_auth, ports, processes
from retrofill_tools.stack.layout import Identity, Layout
from retrofill_tools.stack.maven import Maven
from tests.support.installation import until

ADDRESS = "127.0.0.1"


@dataclass(frozen=True)
class Authority:
    """A certificate authority in its own folder."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, name: str) -> Authority:
        """Create an authority. Skips the test without openssl."""
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
        """A server's key and certificate in one PEM file. ``names`` looks like
        ``IP:127.0.0.1,DNS:localhost``.
        """
        certificate, key = self.issue_to("broker", f"subjectAltName={names}")
        both = self.folder / "server.pem"
        both.touch(mode=0o600)
        both.write_text(key.read_text() + certificate.read_text())
        return both

    def issue_to(self, name: str, extension: str = "basicConstraints=CA:FALSE") -> tuple[Path, Path]:
        """A client's certificate and key. Kafka sees its principal as ``CN=name``."""
        key, request, certificate = (self.folder / f"{name}.{end}" for end in ("key", "csr", "crt"))
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"{extension}\n")
        _openssl("req", "-new", *_new_key(key), "-subj", f"/CN={name}", "-out", str(request))
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self.folder / "ca.key"),
            "-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", str(certificate),
        )  # fmt: skip
        return certificate, key


def _new_key(path: Path) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-keyout", str(path)]


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@contextmanager
def broker(
    home: Path, identity: Identity, authority: Authority, names: str, *, mutual: bool = False
) -> Iterator[Settings]:
    """Start a broker like the embedded one, with users, ACLs and TLS. Yields its clients' settings.

    With ``mutual``, clients authenticate by certificates of the same authority, and the settings
    are the administrator's.
    """
    settings = Settings(home=home, embedded_kafka_auth=True)
    layout = Layout(home)
    layout.make()
    environment = processes.environment(layout, identity.id)
    runtime = java.find(settings)
    jars = Maven(settings, runtime, lambda _: None, environment).fetch("Kafka", kafka.BROKER)
    reserved = ExitStack()
    chosen = _choose(reserved.enter_context(ports.Reservations()))
    command = kafka.prepare(layout, identity, settings, runtime, jars, chosen, environment)
    _talk_tls(layout.run / "kafka.properties", authority, names, mutual=mutual)
    with layout.log("kafka").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        clients = Settings.model_validate(
            {
                "home": home,
                "kafka_bootstrap_servers": f"{ADDRESS}:{chosen['kafka']}",
                **kafka_auth.endpoints(identity.passwords),
                "kafka_security_protocol": "SASL_SSL",
                "kafka_ssl_ca": authority.certificate,
                **(by_certificate(authority, kafka_auth.ADMIN) if mutual else {}),
            }
        )
        _wait(process, clients if mutual else kafka_auth.as_admin(clients, identity.passwords), layout)
        reserved.close()
        yield clients
    finally:
        reserved.close()
        process.terminate()
        process.wait(60)


def _choose(reserved: ports.Reservations) -> dict[str, int]:
    return {name: reserved.choose(first, None) for name, first in (("kafka", 21092), ("kafka_controller", 21093))}


def by_certificate(authority: Authority, name: str) -> dict[str, object]:
    """The settings of a client that authenticates by certificate, without a password."""
    certificate, key = authority.issue_to(name)
    login = {"kafka_ssl_certificate": certificate, "kafka_ssl_key": key, "kafka_passwords": {}}
    return {"kafka_security_protocol": "SSL", **login}


def _talk_tls(properties: Path, authority: Authority, names: str, *, mutual: bool) -> None:
    """Switch the client listener to TLS."""
    lines = dict(line.split("=", 1) for line in properties.read_text().splitlines())
    lines |= {
        "listener.security.protocol.map": f"{kafka_auth.LISTENER}:SASL_SSL,CONTROLLER:SASL_PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue(names)),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
    }
    if mutual:
        lines |= {
            "listener.security.protocol.map": f"{kafka_auth.LISTENER}:SSL,CONTROLLER:SASL_PLAINTEXT",
            "ssl.client.auth": "required",
            "super.users": f"User:{kafka_auth.ADMIN};User:CN={kafka_auth.ADMIN};User:CN=broker",
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
