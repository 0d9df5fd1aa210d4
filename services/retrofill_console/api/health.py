"""Health of the installation: servers, services, hosts and live attempts."""

from __future__ import annotations

from typing import Any

import psycopg
from confluent_kafka import KafkaException
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request

from retrofill_console.console import Console
from retrofill_core.bus.clients import admin
from retrofill_core.contract.topics import CLI_CLIENT
from retrofill_core.store.clock import database_now
from retrofill_tools.client import health as installation
from retrofill_tools.client import read_hosts, read_runs
from retrofill_tools.client.failures import explain_kafka, explain_postgres
from retrofill_tools.client.pools import summary

# Attempts that are listed.
MOST = 100
NOTHING: dict[str, Any] = {"at": None, "services": [], "hosts": [], "pools": [], "attempts": [], "live_attempts": 0}


def health(console: Console, _: Request) -> dict[str, Any]:
    """What is known, also while a server does not answer."""
    postgres, found = None, dict(NOTHING)
    try:
        with console.reading() as conn:
            found = _in_postgres(conn)
    except (SQLAlchemyError, psycopg.Error) as e:
        postgres = explain_postgres(e)
    return {**found, "postgres": postgres, "kafka": _add_lags(console, found["services"])}


def _in_postgres(conn: Connection) -> dict[str, Any]:
    hosts = read_hosts.hosts(conn)
    return {
        "at": database_now(conn),
        "services": installation.services(conn),
        "hosts": [dict(each) for each in hosts],
        "pools": summary(hosts, read_hosts.pools_of_pipelines(conn)),
        "attempts": [read_runs.attempt_as_json(each) for each in read_runs.live_attempts(conn, MOST)],
        "live_attempts": read_runs.count_active(conn)[1],
    }


def _add_lags(console: Console, services: list[dict[str, Any]]) -> str | None:
    """Replace each service's offsets by its lag; why Kafka does not tell it, if so."""
    settings, problem = console.settings, console.hub.problem
    offsets = [service.pop("offsets") for service in services]
    lags: list[int | None] = [None] * len(services)
    if problem is None:
        try:
            client = admin(settings, CLI_CLIENT)  # must outlive its requests
            lags = [installation.lag(client, settings.topic_prefix, each) for each in offsets]
        except KafkaException as e:
            problem = explain_kafka(settings, e)
    for service, lag in zip(services, lags, strict=True):
        service["lag"] = lag
    return problem
