"""Describes a server's failure in one line for people."""

from __future__ import annotations

import psycopg
from confluent_kafka import KafkaException
from sqlalchemy.exc import DBAPIError

from retrofill_core.bus.observability.diagnosis import explain
from retrofill_core.settings import Settings


def explain_postgres(error: Exception) -> str:
    """One line about a failed query, with what to check."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    line = " ".join(str(cause).split("\n")[0].split())
    if isinstance(cause, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName):
        return f"the database is not set up for Retrofill ({line}): is RETROFILL_POSTGRES_DSN right?"
    if isinstance(cause, psycopg.errors.UndefinedColumn):
        return f"the schema is older than this command ({line}): run 'retrofill init' of this release"
    if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError):
        return f"Postgres cannot be reached: {line}; check 'retrofill status' or RETROFILL_POSTGRES_DSN"
    return f"Postgres refused: {line}"


def explain_kafka(settings: Settings, error: KafkaException) -> str:
    """One line about a failed read or write, with what to check."""
    return f"Kafka cannot be used: {explain(settings, error)}"
