"""``init``: what must exist in Postgres and Kafka before a service starts, for stacks that are not the embedded one."""

from __future__ import annotations

from collections.abc import Callable

import typer

from retrofill.bus.create_topics import TopicsDiffer, create_topics
from retrofill.cli.errors import UserError
from retrofill.settings import Settings
from retrofill.store.init import InstallationDiffers, prepare_database


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(init)


def init() -> None:
    """Prepare Postgres and Kafka: schema, roles and topics. Changes nothing that is there already."""
    settings = Settings()
    # Both addresses are needed: found out before anything is changed.
    settings.dsn_of("owner")
    settings.bootstrap_servers()
    _part("Postgres", lambda: prepare_database(settings), "schema and roles are there")
    _part("Kafka", lambda: create_topics(settings), f"topics {settings.topic_prefix}* are there")


def _part(name: str, prepare: Callable[[], object], done: str) -> None:
    try:
        prepare()
    except (InstallationDiffers, TopicsDiffer) as e:
        raise UserError(str(e)) from e
    typer.echo(f"{name:<9} {done}")
