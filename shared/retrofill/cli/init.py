"""``init``: what must exist in Postgres and Kafka before a service starts, for stacks that are not the embedded one."""

from __future__ import annotations

import typer
from confluent_kafka import KafkaException

from retrofill.admin.database import InstallationDiffers
from retrofill.admin.init import initialise
from retrofill.admin.topic_settings import compare_topics
from retrofill.admin.topics import TopicsDiffer
from retrofill.admin.users import NoAuthorizer
from retrofill.bus.observability.diagnosis import why
from retrofill.client.connect import checked_settings
from retrofill.errors import UserError
from retrofill.settings import Settings
from retrofill.store.installation import LimitsMissing


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(init)


def init() -> None:
    """Prepare Postgres and Kafka: schema, roles, topics, and users with their rights. What is there already stays."""
    settings = checked_settings()
    # Both addresses are needed: found out before anything is changed.
    settings.dsn_of("owner")
    settings.bootstrap_servers()
    try:
        initialise(settings)
    except (InstallationDiffers, LimitsMissing, TopicsDiffer, NoAuthorizer) as e:
        raise UserError(str(e)) from e
    except KafkaException as e:
        raise UserError(f"Kafka cannot be used: {why(settings, e)}") from e
    _compare(settings)
    typer.echo("Postgres  schema and roles are there")
    typer.echo(f"Kafka     topics {settings.topic_prefix}* of {settings.partitions} partitions are there")
    if settings.kafka_acls:
        typer.echo(f"Kafka     users {settings.kafka_user('*')} have their rights")


def _compare(settings: Settings) -> None:
    """Say which settings of topics differ from what is needed. Raises ``UserError`` where one cannot work."""
    try:
        found = compare_topics(settings)
    except KafkaException as e:
        typer.echo(f"retrofill: the settings of the topics cannot be read: {why(settings, e)}", err=True)
        return
    lines = [one.line(settings.bootstrap_servers()) for one in found]
    refused = bool(found) and found[0].fatal
    for line in lines[1:] if refused else lines:
        typer.echo(f"retrofill: {line}", err=True)
    if refused:
        raise UserError(lines[0])
