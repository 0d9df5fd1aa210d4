"""Everything that must exist before a service starts: schema, roles, topics."""

from __future__ import annotations

from retrofill.bus.create_topics import create_topics
from retrofill.settings import Settings
from retrofill.store.init import prepare_database


def initialise(settings: Settings) -> None:
    """Prepare Postgres and Kafka. Idempotent; raises one of the errors of the two where they contradict the settings."""
    prepare_database(settings)
    create_topics(settings)
