"""``retrofill init`` is idempotent and refuses to contradict what the first run fixed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from tests.support.installation import Installation
from tests.support.servers import Servers

from retrofill_core.bus.clients import admin
from retrofill_core.contract.topics import PLANNER, SERVICES
from retrofill_core.store.engine import make_engine
from retrofill_core.store.tables import metadata


@pytest.fixture(scope="module")
def installation(servers: Servers) -> Iterator[Installation]:
    """One for all tests: what is refused changes nothing."""
    made = servers.installation()
    yield made
    made.close()


def init(environment: dict[str, str], before: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"{before}from retrofill_tools.cli.main import run; run()", "init"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_init_may_be_repeated(installation: Installation) -> None:
    for _ in range(2):
        done = init(installation.environment())
        assert (done.returncode, done.stderr) == (0, "")
        assert [line.split()[0] for line in done.stdout.splitlines()] == ["Postgres", "Kafka"]


def test_init_refuses_what_differs_from_the_first_one(installation: Installation) -> None:
    done = init(installation.environment() | {"RETROFILL_PARTITIONS": "7"})
    assert done.returncode == 1
    assert done.stderr.startswith("retrofill: this database was initialized with ")
    assert done.stderr.count("\n") == 1


def test_init_refuses_a_postgres_that_is_too_old(installation: Installation) -> None:
    """None is at hand, so the oldest that it accepts is a later one."""
    later = "from retrofill_tools.admin import init; init.OLDEST_POSTGRES = 99; "
    done = init(installation.environment(), later)
    assert done.returncode == 1
    assert done.stderr == "retrofill: Postgres is version 18, but Retrofill needs 99 or newer\n"


def test_init_needs_both_addresses_before_it_changes_anything(installation: Installation) -> None:
    environment = installation.environment() | {"RETROFILL_HOME": f"nowhere-{uuid.uuid4().hex}"}
    del environment["RETROFILL_KAFKA_BOOTSTRAP_SERVERS"]
    done = init(environment)
    assert done.returncode == 1
    assert "RETROFILL_KAFKA_BOOTSTRAP_SERVERS is not set" in done.stderr
    assert done.stderr.count("\n") == 1


def without_limits(installation: Installation) -> dict[str, str]:
    """A login of the planner as a pooler or a DSN of the operator's may make it."""
    dsn = psycopg.conninfo.make_conninfo(
        installation.settings.dsn_of("owner"), options="-c transaction_timeout=0 -c lock_timeout=0"
    )
    return installation.environment() | {"RETROFILL_POSTGRES_SERVICE_DSNS": json.dumps({PLANNER.name: dsn})}


def test_init_refuses_a_login_whose_stopped_process_would_hold_its_locks(installation: Installation) -> None:
    done = init(without_limits(installation))
    assert done.returncode == 1
    assert done.stderr.startswith("retrofill: this Postgres session has no transaction_timeout, lock_timeout, ")
    assert done.stderr.count("\n") == 1


def test_a_service_does_not_start_with_such_a_login(installation: Installation) -> None:
    refused = installation.start(PLANNER.name, without_limits(installation), wait=False)
    assert refused.process.wait(60) == 1
    assert "this Postgres session has no transaction_timeout, lock_timeout, " in refused.said()


def test_one_login_for_all_gets_the_limits_of_the_services(installation: Installation) -> None:
    """The owner's role has none of its own, and a service that lacks them would not get ready."""
    for service in SERVICES:
        installation.start(service, RETROFILL_POSTGRES_SERVICE_DSNS="{}").stop()


@pytest.mark.parametrize(
    ("topic", "setting", "value", "status"),
    [("run-events", "max.message.bytes", "50000", 0), ("cursors.run-starter", "cleanup.policy", "delete", 1)],
)
def test_init_says_which_settings_of_a_topic_differ(
    installation: Installation, topic: str, setting: str, value: str, status: int
) -> None:
    name = f"{installation.settings.topic_prefix}{topic}"
    change(installation, name, setting, value)
    done = init(installation.environment())
    assert done.returncode == status
    assert done.stderr.startswith(f"retrofill: topic {name} has {setting}={value}: ")
    advice = re.search(rf"--entity-name {name} --add-config {setting}=(\w+)", done.stderr)
    assert advice is not None
    assert done.stderr.count("\n") == 1
    change(installation, name, setting, advice[1])


def change(installation: Installation, topic: str, setting: str, value: str) -> None:
    """Change a setting of a topic, as an operator would."""
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client = admin(installation.settings, "test")
    client.incremental_alter_configs([resource])[resource].result(20)


def test_the_schema_is_what_the_migrations_make(installation: Installation) -> None:
    engine = make_engine(installation.settings.dsn_of("owner"), "test")
    with engine.connect() as conn:
        context = MigrationContext.configure(
            conn,
            opts={
                "include_schemas": True,
                "include_name": lambda name, kind, _: kind != "schema" or name == "retrofill",
                "compare_server_default": False,
            },
        )
        differences = [d for d in compare_metadata(context, metadata) if "alembic_version" not in repr(d)]
    engine.dispose()
    assert differences == []
