"""State for pages, read from Postgres, the same documents as the commands print with ``--json``, and the health of the
installation: servers, services and how far behind they are, hosts and live attempts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request

from retrofill.errors import NotThere
from retrofill_console.api.inputs import filters, limit, number, search, states
from retrofill_console.console import Console
from retrofill_core.bus.clients import admin
from retrofill_core.bus.takeover import Ends
from retrofill_core.contract.topics import CLI_CLIENT, SERVICES, Service
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.callback import CallbackState
from retrofill_core.domain.deadline import DeadlineState
from retrofill_core.domain.run import RunState
from retrofill_core.settings import Settings
from retrofill_core.store.sql import database_now
from retrofill_core.store.tables import SERVICE_TABLES
from retrofill_tools.client.attempts import LiveAttempt, live_attempts
from retrofill_tools.client.backfills import (
    BackfillSummary,
    FullBackfill,
    count_active,
    describe_backfill,
    find_backfill,
    find_backfills,
)
from retrofill_tools.client.connect import explain_kafka, explain_postgres
from retrofill_tools.client.coverage import coverage_of_pipeline
from retrofill_tools.client.deadlines import Callback, Deadline, find_callbacks, find_deadlines
from retrofill_tools.client.grid import grid_of_backfill
from retrofill_tools.client.hosts import Host, Pool, find_hosts, find_pools
from retrofill_tools.client.kafka import content, reading_topics
from retrofill_tools.client.pipelines import (
    PipelineSummary,
    applied_pipelines,
    find_pipeline,
    last_applied_at,
    pipeline_as_json,
)
from retrofill_tools.client.runs import FullRun, RunSummary, describe_run, find_run, find_runs

# Attempts that are listed.
MOST = 100
# An instance's name ends with its process id; some of its connections have a word more.
_OF_CONNECTION = re.compile(r"(?<=\d)-[a-z]+$")
_CONNECTED = text("SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database()")
# How long the oldest message of a service is waited for.
READ_SECONDS = 1.0
# Next offsets, or numbers of messages, by topic and partition.
Offsets = Mapping[tuple[str, int], int]


@dataclass(frozen=True)
class ServiceHealth:
    """A service: its ``replicas`` (instances connected to Postgres now), ``shards`` and those ``owned``, its events that
    are ``unpublished``, and its ``lag``: messages on Kafka that are not handled yet, of which the oldest is
    ``oldest_message_seconds`` old.
    """

    name: str
    replicas: list[str]
    shards: int
    owned: int
    unpublished: int
    oldest_unpublished_seconds: float | None
    lag: int | None
    oldest_message_seconds: float | None = None


@dataclass(frozen=True)
class Health:
    """What is known, also while a server does not answer: ``postgres`` and ``kafka`` say why not."""

    at: datetime | None = None
    services: Sequence[ServiceHealth] = ()
    hosts: Sequence[Host] = ()
    pools: Sequence[Pool] = ()
    attempts: Sequence[LiveAttempt] = ()
    live_attempts: int = 0
    postgres: str | None = None
    kafka: str | None = None


def health(console: Console, _: Request) -> Health:
    try:
        with console.reading() as conn:
            found, offsets = _in_postgres(conn)
    except (SQLAlchemyError, psycopg.Error) as e:
        found, offsets = Health(postgres=explain_postgres(e)), []
    lags, problem = _lags(console, offsets)
    services = [
        each if lag is None else replace(each, lag=lag.messages, oldest_message_seconds=lag.seconds)
        for each, lag in zip(found.services, lags, strict=True)
    ]
    return replace(found, services=services, kafka=problem)


def _in_postgres(conn: Connection) -> tuple[Health, list[Offsets]]:
    """With the offsets of each service."""
    hosts = find_hosts(conn)
    connected = sorted(conn.execute(_CONNECTED).scalars())
    found = Health(
        at=database_now(conn),
        services=[_service(conn, service, connected) for service in SERVICES.values()],
        hosts=hosts,
        pools=find_pools(conn, hosts),
        attempts=live_attempts(conn, MOST),
        live_attempts=count_active(conn)[1],
    )
    return found, [_offsets(conn, service) for service in SERVICES.values()]


def _service(conn: Connection, service: Service, connected: list[str]) -> ServiceHealth:
    own = SERVICE_TABLES[service.package]
    shards, owned = conn.execute(select(func.count(), func.count(own.shard.c.owner)).select_from(own.shard)).one()
    age = func.extract("epoch", func.clock_timestamp() - func.min(own.outbox.c.created_at))
    unpublished, oldest = conn.execute(select(func.count(), age).select_from(own.outbox)).one()
    mine = {_OF_CONNECTION.sub("", name) for name in connected if name.startswith(f"{service.name}-")}
    seconds = None if oldest is None else round(float(oldest), 3)
    return ServiceHealth(service.name, sorted(mine), shards, owned, unpublished, seconds, lag=None)


def _offsets(conn: Connection, service: Service) -> Offsets:
    of = SERVICE_TABLES[service.package].offset.c
    return {(row[0], row[1]): row[2] for row in conn.execute(select(of.topic, of.partition, of.next_offset))}


@dataclass(frozen=True)
class _Lag:
    messages: int
    seconds: float | None


def _lags(console: Console, offsets: Sequence[Offsets]) -> tuple[Sequence[_Lag | None], str | None]:
    """The lag of each service; why Kafka does not tell it, if so."""
    settings, problem = console.settings, console.hub.problem
    if problem is None:
        try:
            client = admin(settings, CLI_CLIENT)  # must outlive its requests
            behind = [_behind(client, settings.topic_prefix, each) for each in offsets]
            return [
                _Lag(sum(each.values()), _oldest(settings, each, of)) for each, of in zip(behind, offsets, strict=True)
            ], None
        except KafkaException as e:
            problem = explain_kafka(settings, e)
    return [None] * len(offsets), problem


def _behind(client: AdminClient, prefix: str, offsets: Offsets) -> Offsets:
    """How many messages are not handled yet, where there are any. Raises ``KafkaException``."""
    partitions: dict[str, list[int]] = {}
    for topic, partition in offsets:
        partitions.setdefault(topic, []).append(partition)
    ends = Ends(lambda: client, lambda: None, prefix).high_watermarks(partitions) if partitions else {}
    return {place: ends[place] - of for place, of in offsets.items() if ends[place] > of}


def _oldest(settings: Settings, behind: Offsets, offsets: Offsets) -> float | None:
    """How many seconds ago the first message was written that is not handled yet, if it could be read soon."""
    if not behind:
        return None
    written: dict[tuple[str, int], float] = {}
    until = time.monotonic() + READ_SECONDS
    with reading_topics(settings) as consumer:
        at = (TopicPartition(settings.topic_prefix + topic, p, offsets[topic, p]) for topic, p in behind)
        consumer.assign(list(at))
        while len(written) < len(behind) and (left := until - time.monotonic()) > 0:
            if (message := content(consumer.poll(left))) is not None:
                place = str(message.topic()), int(message.partition() or 0)
                written.setdefault(place, message.timestamp()[1] / 1000)
    return round(max(0.0, time.time() - min(written.values())), 3) if written else None


def backfills(console: Console, request: Request) -> list[BackfillSummary]:
    pipeline, wanted = request.query_params.get("pipeline"), states(request, BackfillState)
    with console.reading() as conn:
        return find_backfills(conn, pipeline, wanted, limit(request), search=search(request))


def backfill(console: Console, request: Request) -> FullBackfill:
    failures = number(request.query_params.get("failures", "10"), "failures", 0, 10_000)
    with console.reading() as conn:
        return describe_backfill(conn, find_backfill(conn, request.path_params["id"]), failures)


def grid(console: Console, request: Request) -> dict[str, Any]:
    with console.reading() as conn:
        return grid_of_backfill(conn, find_backfill(conn, request.path_params["id"]))


def runs(console: Console, request: Request) -> list[RunSummary]:
    id = request.query_params.get("backfill", "")
    with console.reading() as conn:
        find_backfill(conn, id)
        return find_runs(conn, id, states(request, RunState), limit(request))


def run(console: Console, request: Request) -> FullRun:
    id = number(request.path_params["id"], "id")
    with console.reading() as conn:
        found = find_run(conn, id)
        if found is None:
            raise NotThere(f"there is no run {id}")
        return describe_run(conn, found)


def pipelines(console: Console, _: Request) -> list[PipelineSummary]:
    with console.reading() as conn:
        return applied_pipelines(conn)


def pipeline(console: Console, request: Request) -> dict[str, Any]:
    name = request.path_params["name"]
    with console.reading() as conn:
        return pipeline_as_json(find_pipeline(conn, name).definition, last_applied_at(conn, name))


def coverage(console: Console, request: Request) -> dict[str, Any]:
    with console.reading() as conn:
        return coverage_of_pipeline(conn, find_pipeline(conn, request.path_params["name"]), database_now(conn))


def deadlines(console: Console, request: Request) -> list[Deadline]:
    with console.reading() as conn:
        return find_deadlines(conn, filters(request, DeadlineState), limit(request))


def callbacks(console: Console, request: Request) -> list[Callback]:
    with console.reading() as conn:
        return find_callbacks(conn, filters(request, CallbackState), limit(request))
