"""Creates what services need before they start: schema, roles, topics, Kafka users and ACLs."""

from __future__ import annotations

from retrofill_core.settings import Settings
from retrofill_tools.admin.database import check_service_limits, prepare_database
from retrofill_tools.admin.topics import create_topics
from retrofill_tools.admin.users import create_users


def initialize(settings: Settings) -> None:
    """Prepare Postgres and Kafka. Idempotent. Raises if either contradicts the settings."""
    prepare_database(settings)
    check_service_limits(settings)
    create_topics(settings)
    if settings.kafka_acls:
        create_users(settings)
