"""``init``: creates what services need in Postgres and Kafka.

The embedded stack does this by itself.
"""

from __future__ import annotations

import typer
from confluent_kafka import KafkaException

from retrofill.errors import UserError
from retrofill_core.bus.observability.diagnosis import explain
from retrofill_core.settings import Settings
from retrofill_core.store.installation import LimitsMissing
from retrofill_tools.admin.database import InstallationDiffers, PostgresTooOld
from retrofill_tools.admin.init import initialize
from retrofill_tools.admin.topic_settings import compare_topics
from retrofill_tools.admin.topics import TopicsDiffer
from retrofill_tools.admin.users import NoAuthorizer
from retrofill_tools.cli.options import AsJson
from retrofill_tools.cli.output import print_json
from retrofill_tools.client.connect import checked_settings


def register(app: typer.Typer) -> None:
    app.command()(init)


def init(as_json: AsJson = False) -> None:
    """Create the schema and roles in Postgres, and topics, users and ACLs in Kafka.

    Existing ones are kept.
    """
    settings = checked_settings()
    # Both addresses are required: fail before anything is changed.
    settings.dsn_of("owner")
    settings.bootstrap_servers()
    try:
        initialize(settings)
    except (InstallationDiffers, PostgresTooOld, LimitsMissing, TopicsDiffer, NoAuthorizer) as e:
        raise UserError(str(e)) from e
    except KafkaException as e:
        raise UserError(f"Kafka cannot be used: {explain(settings, e)}") from e
    _compare(settings)
    if as_json:
        users = settings.kafka_user("*") if settings.kafka_acls else None
        return print_json({"topics": f"{settings.topic_prefix}*", "partitions": settings.partitions, "users": users})
    typer.echo("Postgres  schema and roles exist")
    typer.echo(f"Kafka     topics {settings.topic_prefix}* with {settings.partitions} partitions exist")
    if settings.kafka_acls:
        typer.echo(f"Kafka     users {settings.kafka_user('*')} have their rights")
    return None


def _compare(settings: Settings) -> None:
    """Report topic settings that differ from the required ones.

    Raises ``UserError`` if one is fatal.
    """
    try:
        found = compare_topics(settings)
    except KafkaException as e:
        typer.echo(f"retrofill: the settings of the topics cannot be read: {explain(settings, e)}", err=True)
        return
    lines = [one.line(settings.bootstrap_servers()) for one in found]
    refused = bool(found) and found[0].fatal
    for line in lines[1:] if refused else lines:
        typer.echo(f"retrofill: {line}", err=True)
    if refused:
        raise UserError(lines[0])
