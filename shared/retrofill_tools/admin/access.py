"""Kafka rights: one row per principal, from which ``retrofill init`` creates the ACLs.

A service may read the topics its consumer subscribes to. It may write what it publishes by the
contract (``contract/topics_of.py``), dead letters, and messages it republishes to the right
partition. Drivers have no rights: their run-starter publishes what they report.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from retrofill_core.contract.topics import (
    CALLBACK_RUNNER,
    CLI_CLIENT,
    CONSOLE,
    OPERATOR,
    REPUBLISHED,
    REQUESTER,
    REQUESTS,
    RUN_STARTER,
    SERVICES,
    Service,
    Topic,
)
from retrofill_core.contract.topics_of import TRAFFIC
from retrofill_core.settings import Settings


@dataclass(frozen=True)
class Access:
    """The rights of one principal. Topics are full names; groups and transactional ids are prefixes."""

    who: str
    reads: frozenset[str]
    writes: frozenset[str]
    deletes: frozenset[str] = frozenset()
    groups: tuple[str, ...] = ()
    transactional_ids: tuple[str, ...] = ()


def table(settings: Settings) -> dict[str, Access]:
    """The rights of every service and of the operator, the requester and the console, by name."""
    rows = [_of_service(service, settings) for service in SERVICES.values()]
    rows += [_of_operator(settings), _of_requester(settings), _of_console(settings)]
    return {row.who: row for row in rows}


def _of_service(service: Service, settings: Settings) -> Access:
    prefix = settings.topic_prefix
    cursor, group = service.cursor_topic(prefix), service.group(prefix)
    published = {topic for topic, traffic in TRAFFIC.items() if service in traffic.writers}
    writes = _named(prefix, published | (REPUBLISHED & set(service.reads))) | {cursor}
    if service is CALLBACK_RUNNER:
        writes |= set(settings.callback_topics)
    if service is RUN_STARTER and settings.openlineage_topic is not None:
        writes |= {settings.openlineage_topic}
    return Access(
        service.name,
        # All cursors: at its start each service compares them with Postgres.
        _named(prefix, service.reads) | {each.cursor_topic(prefix) for each in SERVICES.values()},
        writes,
        groups=(group,),
        transactional_ids=(service.relay_id(prefix),),
    )


def _of_operator(settings: Settings) -> Access:
    """Everything the CLI does: what it publishes, and dead letters it replays."""
    prefix = settings.topic_prefix
    read = {topic for service in SERVICES.values() for topic in service.reads}
    return Access(
        OPERATOR,
        _named(prefix, Topic),
        _named(prefix, read),
        deletes=_named(prefix, {Topic.DEAD_LETTERS}),
        groups=(f"{prefix}{CLI_CLIENT}",),
    )


def _of_requester(settings: Settings) -> Access:
    """Requests backfills and follows them.

    May not write ``pipelines``, which names code that drivers run.
    """
    prefix = settings.topic_prefix
    published = {topic for topic, traffic in TRAFFIC.items() if traffic.writers}
    return Access(
        REQUESTER,
        _named(prefix, published - {Topic.DEADLINES, Topic.CALLBACK_REQUESTS}),
        _named(prefix, {Topic.BACKFILL_REQUESTS}),
        groups=(f"{prefix}{CLI_CLIENT}", f"{prefix}subscriber"),
    )


def _of_console(settings: Settings) -> Access:
    """Reads everything that it shows, and asks for changes.

    May not write ``pipelines``, and replays no dead letter that is not a request.
    """
    prefix = settings.topic_prefix
    return Access(CONSOLE, _named(prefix, Topic), _named(prefix, REQUESTS), groups=(f"{prefix}{CLI_CLIENT}",))


def _named(prefix: str, topics: Iterable[Topic]) -> frozenset[str]:
    return frozenset(f"{prefix}{topic}" for topic in topics)


def acls(access: Access, user: str) -> set[AclBinding]:
    """The rights as ACLs of ``user``; each implies the right to describe."""
    topic, group, transactional = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
    rights = [
        *((topic, name, AclOperation.READ) for name in access.reads),
        *((topic, name, AclOperation.WRITE) for name in access.writes),
        *((topic, name, AclOperation.DELETE) for name in access.deletes),
        *((group, name, AclOperation.READ) for name in access.groups),
        *((transactional, name, AclOperation.WRITE) for name in access.transactional_ids),
    ]
    return {
        AclBinding(
            kind,
            name,
            ResourcePatternType.LITERAL if kind is topic else ResourcePatternType.PREFIXED,
            f"User:{user}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for kind, name, operation in rights
    }
