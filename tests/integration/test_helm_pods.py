"""The chart's pods, run as processes with exactly the environment that they would get, against real
servers: Kafka with TLS, users and ACLs, and Postgres with roles.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from psycopg.conninfo import make_conninfo
from tests.support import helm, tls
from tests.support.installation import ROOT, until
from tests.support.manifests import Manifest, Pod, environment, of_kind, pods
from tests.support.servers import Servers

from retrofill_core.bus.clients import admin
from retrofill_core.contract.topics import SERVICES
from retrofill_core.setting_types import Role
from retrofill_core.settings import Settings
from retrofill_tools.client.tokens import make
from retrofill_tools.stack import kafka_auth
from retrofill_tools.stack.layout import Identity, Layout

# Where helm is missing it is built, which takes minutes, so these tests are in the long tier.
pytestmark = pytest.mark.long

CONSOLE = {"enabled": True, "tokens": {"secret": "retrofill-console"}}
SECRET, TOKEN = make("ada", Role.REQUEST)
COMMAND = ("-c", "from retrofill_tools.cli.main import run; run()")


@dataclass(frozen=True)
class Cluster:
    """A rendered release and the contents of its Secrets."""

    manifests: list[Manifest]
    secrets: dict[tuple[str, str], str]
    folder: Path

    def pod(self, component: str) -> Pod:
        """The pods of a component."""
        return pods(self.manifests)[component]

    def start(self, component: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a component's container command as a process, with the environment that a kubelet
        would set.
        """
        root = self.folder / component
        fields = environment(self.pod(component), self.manifests, self.secrets, root)
        home = root / "var/lib/retrofill"
        home.mkdir(parents=True, exist_ok=True)
        # The image sets the home. The port differs because all containers share one machine.
        fields |= {"RETROFILL_HOME": str(home), "RETROFILL_HTTP_PORT": "0", "RETROFILL_CONSOLE_PORT": "0"}
        inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
        with (root / "out").open("wb") as out, (root / "err").open("wb") as err:
            return subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env={**inherited, **fields}, stdout=out, stderr=err
            )

    def said(self, component: str) -> str:
        """The stderr of its container."""
        return (self.folder / component / "err").read_text()

    def run(self, component: str, *arguments: str) -> tuple[int, str, str]:
        """Run a CLI command in a component's container. Returns status, stdout and stderr."""
        status = self.start(component, *COMMAND, *arguments).wait(120)
        return status, (self.folder / component / "out").read_text(), self.said(component)


@dataclass(frozen=True)
class Outside:
    """The chart's external dependencies: a Kafka with TLS, and a Postgres."""

    clients: Settings
    identity: Identity
    authority: tls.Authority
    postgres: Settings
    folder: Path

    def release(self, **more: Any) -> Cluster:
        """Render a release with its own database and topic prefix. ``more`` overrides values."""
        name = f"h{uuid.uuid4().hex[:10]}"
        values: dict[str, Any] = {
            "topicPrefix": f"{name}.",
            "partitions": 4,
            "replicationFactor": 1,
            "kafka": {"bootstrapServers": self.clients.bootstrap_servers(), "ca": {"secret": "cluster-ca"}},
            "spark": {"remote": "sc://127.0.0.1:15002"},
            **more,
        }
        with psycopg.connect(make_conninfo(self.postgres.dsn_of("owner"), dbname="postgres"), autocommit=True) as conn:
            conn.execute(f"CREATE DATABASE {name}")
        secrets = _secrets(name, self.clients, self.postgres, self.identity)
        secrets["cluster-ca", "ca.crt"] = self.authority.certificate.read_text()
        return Cluster(helm.render(values), secrets, self.folder / name)


@pytest.fixture(scope="module")
def outside(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    folder = tmp_path_factory.mktemp("cluster")
    identity = Layout(servers.home).identity()
    assert identity is not None
    authority = tls.Authority.make(folder / "authority", "cluster-ca")
    with tls.broker(folder / "broker", identity, authority, "IP:127.0.0.1") as clients:
        yield Outside(clients, identity, authority, servers.settings, folder)


def _secrets(database: str, clients: Settings, postgres: Settings, identity: Identity) -> dict[tuple[str, str], str]:
    """The Secrets that an administrator creates by following the chart's README."""
    dsns = {
        who: make_conninfo(dsn.get_secret_value(), dbname=database)
        for who, dsn in postgres.postgres_service_dsns.items()
    }
    passwords = {who: password.get_secret_value() for who, password in clients.kafka_passwords.items()}
    return {
        **{("retrofill-postgres", who): dsn for who, dsn in dsns.items()},
        **{(f"{database}.{who}", "password"): password for who, password in passwords.items()},
        ("retrofill-console", "tokens"): TOKEN.line,
        (f"{database}.init", "password"): identity.passwords[kafka_auth.ADMIN],
        ("retrofill-init", "postgres-dsn"): make_conninfo(postgres.dsn_of("owner"), dbname=database),
        ("retrofill-init", "postgres-service-dsns"): json.dumps(dsns),
        ("retrofill-init", "kafka-passwords"): json.dumps(passwords),
    }


def test_init_then_services_that_answer_their_probes_then_commands(outside: Outside) -> None:
    administrator = {"username": kafka_auth.ADMIN, "saslMechanism": "PLAIN"}
    cluster = outside.release(init={"kafka": administrator}, cli={"enabled": True}, console=CONSOLE)
    for _ in range(2):  # a Job may be restarted
        status, out, err = cluster.run("init", *cluster.pod("init").containers[0]["args"])
        assert status == 0, err
        assert "have their rights" in out
    packages = {**{name: service.package for name, service in SERVICES.items()}, "console": "retrofill_console"}
    started = {name: cluster.start(name, "-m", package) for name, package in packages.items()}
    try:
        for name, process in started.items():
            ready = cluster.folder / name / "var/lib/retrofill/run" / f"{name}.{process.pid}.ready"
            until(lambda ready=ready, process=process: ready.exists() or process.poll() is not None, f"{name} works")  # type: ignore[misc]
            assert process.poll() is None, cluster.said(name)
            (container,) = cluster.pod(name).containers
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                url = json.loads(ready.read_text())["http"].rstrip("/")
                answer = httpx.get(url + container[probe]["httpGet"]["path"], timeout=20)
                assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json"), answer.text
            if name == "console":
                console = url
        assert cluster.run("cli", "backfill", "list", "--json")[:2] == (0, "[]\n")
        # The reply comes from the planner.
        status, _, err = cluster.run("cli", "backfill", "pause", "nothing")
        assert (status, err.count("\n")) == (1, 1)
        assert "there is no backfill with this id" in err
        # The same from the console, which has rights of its own, for who has the token.
        path, by_token = f"{console}/api/v1/backfills", {"Authorization": f"Bearer {SECRET}"}
        assert httpx.get(path).json() == {"error": "log in first", "login": "token"}
        assert httpx.get(path, headers=by_token).json() == []
        asked = httpx.post(f"{path}/nothing/pause", headers=by_token, json={}, timeout=60)
        assert "there is no backfill with this id" in asked.json()["error"]
    finally:
        for process in started.values():
            process.terminate()
        ended = {name: process.wait(60) for name, process in started.items()}
    assert ended == dict.fromkeys(packages, 0)
    for secret in cluster.secrets.values():
        assert not [name for name in packages if secret in cluster.said(name)]


def test_init_has_enough_with_the_rights_that_strimzi_gives_it(outside: Outside) -> None:
    cluster = outside.release(strimzi={"enabled": True, "cluster": "main"})
    ((name, user),) = [each for each in of_kind(cluster.manifests, "KafkaUser").items() if each[0].endswith(".init")]
    cluster.secrets[name, "password"] = "anything"
    status, _, err = cluster.run("init", "init")
    assert (status, err.count("\n")) == (1, 1)
    assert f"the login of {name} was refused" in err
    make_user(kafka_auth.as_admin(outside.clients, outside.identity.passwords), user, "anything")
    for _ in range(2):
        status, out, err = cluster.run("init", "init")
        assert status == 0, err
        assert "users" not in out


def make_user(settings: Settings, user: Manifest, password: str) -> None:
    """Create a user as Strimzi's user operator does."""
    name = user["metadata"]["name"]
    client = admin(settings, "test")
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    wanted: list[Any] = [UserScramCredentialUpsertion(name, credential, password.encode())]
    for made in client.alter_user_scram_credentials(wanted).values():
        made.result()
    rights = [
        AclBinding(
            ResourceType[rule["resource"]["type"].upper()],
            rule["resource"]["name"],
            ResourcePatternType.PREFIXED,
            f"User:{name}",
            "*",
            AclOperation[operation.upper()],
            AclPermissionType.ALLOW,
        )
        for rule in user["spec"]["authorization"]["acls"]
        for operation in rule["operations"]
        if rule["resource"]["patternType"] == "prefix"
    ]
    assert rights
    for granted in client.create_acls(rights).values():
        granted.result()
