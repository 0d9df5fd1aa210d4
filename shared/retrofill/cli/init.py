"""``init``: what must exist in Postgres and Kafka before a service starts, for stacks that are not the embedded one."""

from __future__ import annotations

import typer

from retrofill.bus.create_topics import TopicsDiffer
from retrofill.cli.errors import UserError
from retrofill.init import initialise
from retrofill.settings import Settings
from retrofill.store.init import InstallationDiffers


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(init)


def init() -> None:
    """Prepare Postgres and Kafka: schema, roles and topics. What is there already stays."""
    settings = Settings()
    # Both addresses are needed: found out before anything is changed.
    settings.dsn_of("owner")
    settings.bootstrap_servers()
    try:
        initialise(settings)
    except (InstallationDiffers, TopicsDiffer) as e:
        raise UserError(str(e)) from e
    typer.echo("Postgres  schema and roles are there")
    typer.echo(f"Kafka     topics {settings.topic_prefix}* of {settings.partitions} partitions are there")
