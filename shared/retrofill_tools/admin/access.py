"""Kafka users and their rights: one row per principal, from which ``retrofill init`` creates exactly its ACLs.

A service may read the topics its consumer subscribes to. It may write what it publishes by the
contract (``contract/topics_of.py``), dead letters, and messages it republishes to the right
partition. Drivers have no rights: their run-starter publishes what they report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from retrofill_core.bus.clients import admin
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

REQUEST_SECONDS = 15.0
ITERATIONS = 8192
# All that clients may choose (RETROFILL_KAFKA_SASL_MECHANISM).
MECHANISMS = (ScramMechanism.SCRAM_SHA_512, ScramMechanism.SCRAM_SHA_256)


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
        # All cursors: each service compares them with Postgres.
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


class NoAuthorizer(Exception):
    """The brokers have no authorizer, so ACLs would have no effect."""


def create_users(settings: Settings) -> None:
    """Create users that have a password in the settings, and ACLs; delete obsolete ACLs.

    Idempotent.

    Raises ``NoAuthorizer`` or ``KafkaException``.
    """
    client = admin(settings, "retrofill-init")
    _set_passwords(client, settings)
    for who, access in table(settings).items():
        user = settings.kafka_user(who)
        wanted, found = acls(access, user), _acls_of(client, user)
        # New rights first, so running services are not interrupted.
        _all_done(client.create_acls(list(wanted - found), request_timeout=REQUEST_SECONDS) if wanted - found else {})
        stale = [exactly(each) for each in found - wanted if each.name.startswith(settings.topic_prefix)]
        _all_done(client.delete_acls(stale, request_timeout=REQUEST_SECONDS) if stale else {})


def _set_passwords(client: AdminClient, settings: Settings) -> None:
    # Kafka refuses a request that changes a user twice.
    for mechanism in MECHANISMS:
        upsertions: list[Any] = [
            UserScramCredentialUpsertion(
                settings.kafka_user(who),
                ScramCredentialInfo(mechanism, ITERATIONS),
                settings.kafka_passwords[who].get_secret_value().encode(),
            )
            for who in table(settings)
            if who in settings.kafka_passwords
        ]
        if upsertions:
            _all_done(client.alter_user_scram_credentials(upsertions, request_timeout=REQUEST_SECONDS))


def _acls_of(client: AdminClient, user: str) -> set[AclBinding]:
    """All ACLs of the user, on any resource."""
    everything = AclBindingFilter(
        ResourceType.ANY,
        None,  # type: ignore[arg-type]  # None means any; the stubs omit it
        ResourcePatternType.ANY,
        f"User:{user}",
        None,  # type: ignore[arg-type]  # likewise
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    try:
        return set(client.describe_acls(everything, request_timeout=REQUEST_SECONDS).result())
    except KafkaException as e:
        if e.args[0].code() == KafkaError.SECURITY_DISABLED:
            raise NoAuthorizer(
                "Kafka has no authorizer (authorizer.class.name is not set): set it, or set RETROFILL_KAFKA_ACLS=false"
            ) from e
        raise


def exactly(acl: AclBinding) -> AclBindingFilter:
    """A filter that only this right matches."""
    return AclBindingFilter(
        acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host, acl.operation, acl.permission_type
    )


def _all_done(futures: Mapping[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result()
