"""Authentication of the embedded Kafka: the broker's settings and the clients' endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from retrofill_core.contract.topics import CONSOLE, OPERATOR, REQUESTER, SERVICES
from retrofill_core.settings import Settings

ADMIN = "kafka-admin"
USERS = (*SERVICES, OPERATOR, REQUESTER, CONSOLE)
LISTENER = "PLAINTEXT"


def secret_name(client: str) -> str:
    """The name of a client's Kafka password in the stack's secrets."""
    return client if client == ADMIN else f"kafka-{client}"


def broker_settings(passwords: Mapping[str, str]) -> dict[str, object]:
    """SCRAM for clients, whose users ``init`` creates; PLAIN for the broker and ``init``.

    The controller's listener also requires a login, because it allows any change.
    """
    password = passwords[ADMIN]
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{ADMIN}" password="{password}"'
    return {
        "listener.security.protocol.map": f"{LISTENER}:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name": LISTENER,
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        f"listener.name.{LISTENER.lower()}.plain.sasl.jaas.config": f'{login} user_{ADMIN}="{password}";',
        f"listener.name.{LISTENER.lower()}.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": f'{login} user_{ADMIN}="{password}";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN}",
        "allow.everyone.if.no.acl.found": "false",
    }


def endpoints(passwords: Mapping[str, str] | None) -> dict[str, Any]:
    """Kafka's login in the endpoints file.

    Without ``passwords``, the broker has no authentication.
    """
    return {
        "kafka_security_protocol": "PLAINTEXT" if passwords is None else "SASL_PLAINTEXT",
        "kafka_sasl_mechanism": "SCRAM-SHA-512",
        "kafka_acls": passwords is not None,
        "kafka_passwords": {} if passwords is None else {user: passwords[secret_name(user)] for user in USERS},
    }


def as_admin(settings: Settings, passwords: Mapping[str, str]) -> Settings:
    """The settings with the admin's login, which may create users."""
    login = {"kafka_username": ADMIN, "kafka_password": SecretStr(passwords[ADMIN]), "kafka_sasl_mechanism": "PLAIN"}
    return settings.model_copy(update=login)
