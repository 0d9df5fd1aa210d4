"""Creates Kafka users and their ACLs: each gets exactly its row of ``retrofill_tools.admin.access``."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from retrofill_core.bus.clients import admin
from retrofill_core.settings import Settings
from retrofill_tools.admin.access import acls, table

REQUEST_SECONDS = 15.0
ITERATIONS = 8192
# All that clients may choose (RETROFILL_KAFKA_SASL_MECHANISM).
MECHANISMS = (ScramMechanism.SCRAM_SHA_512, ScramMechanism.SCRAM_SHA_256)


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
