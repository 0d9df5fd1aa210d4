"""Real servers for tests: a Kafka and a Postgres that installations share."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from retrofill_core.settings import Settings
from retrofill_tools.admin.init import initialize
from retrofill_tools.admin.topics import create_topics
from retrofill_tools.stack import kafka_auth
from retrofill_tools.stack.layout import KAFKA, POSTGRES, Layout
from retrofill_tools.stack.stack import Stack
from tests.support.forks import Nursery
from tests.support.installation import PARTITIONS, Installation


class Servers:
    """The embedded Kafka and Postgres in a folder, without services and Spark."""

    # Forks the services of all installations.
    nursery: Nursery | None = None

    def __init__(self, home: Path, *, auth: bool = False) -> None:
        self.home = home
        settings = Settings(home=home, partitions=PARTITIONS, replication_factor=1, embedded_kafka_auth=auth)
        self._stack = Stack(settings, (POSTGRES, KAFKA), ())
        self.settings = Settings(home=home)

    def start(self) -> None:
        """Start both. The stack's own database becomes the template."""
        self._stack.up(lambda *_: None, lambda _: None)
        self.settings = Settings(home=self.home)

    def stop(self) -> None:
        self._stack.down()

    def installation(self, **more: Any) -> Installation:
        """A new installation. ``more`` overrides settings for its init."""
        name = f"t{uuid.uuid4().hex[:10]}"
        dsn = self.settings.dsn_of("owner")
        with psycopg.connect(make_conninfo(dsn, dbname="postgres"), autocommit=True) as conn:
            conn.execute(f"CREATE DATABASE {name} TEMPLATE retrofill")
        settings = self.settings.model_copy(
            update={
                "home": self.home / name,
                "topic_prefix": f"{name}.",
                "postgres_dsn": _moved(dsn, name),
                "postgres_service_dsns": {
                    role: _moved(secret.get_secret_value(), name)
                    for role, secret in self.settings.postgres_service_dsns.items()
                },
                **more,
            }
        )
        (self.home / name).mkdir()
        with psycopg.connect(make_conninfo(dsn, dbname=name)) as conn:
            conn.execute("UPDATE retrofill.installation SET topic_prefix = %s", [f"{name}."])
        if more or settings.kafka_acls:
            initialize(self.as_admin(settings))
        else:
            # What else it does has been done in the template, and takes longer than the copy.
            create_topics(self.as_admin(settings))
        return Installation(settings, self.nursery)

    def as_admin(self, settings: Settings) -> Settings:
        """The settings with the Kafka administrator's login."""
        identity = Layout(self.home).identity()
        assert identity is not None
        open_to_all = settings.kafka_security_protocol == "PLAINTEXT"
        return settings if open_to_all else kafka_auth.as_admin(settings, identity.passwords)


def _moved(dsn: str, database: str) -> Any:
    from pydantic import SecretStr

    return SecretStr(make_conninfo(dsn, dbname=database))
