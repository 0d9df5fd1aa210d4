"""Everything that must exist before a service starts: schema, roles, topics, and the users and ACLs of Kafka."""

from __future__ import annotations

from retrofill.admin.database import check_service_limits, prepare_database
from retrofill.admin.topics import create_topics
from retrofill.admin.users import create_users
from retrofill.settings import Settings


def initialise(settings: Settings) -> None:
    """Prepare Postgres and Kafka. Idempotent; raises one of the errors of the two where they contradict the settings."""
    prepare_database(settings)
    check_service_limits(settings)
    create_topics(settings)
    if settings.kafka_acls:
        create_users(settings)
