"""How drivers log in to Kafka: with their own credentials, never with the run-starter's."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import SecretStr

from retrofill.bus.clients import security
from retrofill.contract.topics import DRIVER, RUN_STARTER
from retrofill.settings import NotConfigured, Settings

# Prefixes of librdkafka properties that hold an identity or credentials.
_IDENTITY = (
    "ssl.key", "ssl.certificate", "ssl.keystore", "ssl.engine", "ssl_key", "ssl_certificate",
    "sasl.username", "sasl.password", "sasl.oauthbearer", "sasl.kerberos",
)  # fmt: skip


def login(settings: Settings) -> dict[str, str]:
    """Variables of a driver's login. Raises ``NotConfigured`` if it would be the run-starter's.

    A login shared by all services is the driver's, too.
    """
    own = settings.acting_as(DRIVER)
    ours = settings.kafka_user(RUN_STARTER.name)
    if settings.kafka_security_protocol.startswith("SASL_") and own.kafka_username == ours:
        raise NotConfigured(
            "RETROFILL_KAFKA_PASSWORDS",
            f"drivers would log in to Kafka as {ours}: add a password for driver to RETROFILL_KAFKA_PASSWORDS, beside that for "
            f"{RUN_STARTER.name}, or set RETROFILL_KAFKA_USERNAME to a login that all services share",
        )
    fields: dict[str, str] = {}
    if own.kafka_username is not None and own.kafka_password is not None:
        fields["RETROFILL_KAFKA_USERNAME"] = own.kafka_username
        fields["RETROFILL_KAFKA_PASSWORD"] = own.kafka_password.get_secret_value()
    config = {name: value.get_secret_value() for name, value in _config(settings).items()}
    if config:
        fields["RETROFILL_KAFKA_CONFIG"] = json.dumps(config)
    return fields | _certificate(settings)


def _config(settings: Settings) -> dict[str, SecretStr]:
    if settings.kafka_driver_config:
        return settings.kafka_driver_config
    if found := sorted(name for name in settings.kafka_config if name.startswith(_IDENTITY)):
        raise NotConfigured(
            "RETROFILL_KAFKA_DRIVER_CONFIG",
            f"RETROFILL_KAFKA_CONFIG contains the run-starter's own login ({', '.join(found)}), which its drivers must not have: "
            "set RETROFILL_KAFKA_DRIVER_CONFIG to the drivers' configuration",
        )
    return settings.kafka_config


def _certificate(settings: Settings) -> dict[str, str]:
    """The driver's certificate and key for mutual TLS, if that is used."""
    certificate, key = settings.kafka_driver_ssl_certificate, settings.kafka_driver_ssl_key
    if "ssl.key.location" not in security(settings):
        return {}
    if certificate is None or key is None:
        raise NotConfigured(
            "RETROFILL_KAFKA_DRIVER_SSL_KEY",
            "Kafka requires mutual TLS and drivers have no key of their own: set RETROFILL_KAFKA_DRIVER_SSL_CERTIFICATE and "
            "RETROFILL_KAFKA_DRIVER_SSL_KEY to files with the driver's certificate and key, not the run-starter's",
        )
    if settings.kafka_ssl_key is not None and _same(key, settings.kafka_ssl_key):
        raise NotConfigured(
            "RETROFILL_KAFKA_DRIVER_SSL_KEY",
            f"RETROFILL_KAFKA_DRIVER_SSL_KEY ({key}) is the run-starter's own key: give drivers their own",
        )
    fields = {"RETROFILL_KAFKA_SSL_CERTIFICATE": str(certificate), "RETROFILL_KAFKA_SSL_KEY": str(key)}
    password = settings.kafka_driver_ssl_key_password
    return fields if password is None else {**fields, "RETROFILL_KAFKA_SSL_KEY_PASSWORD": password.get_secret_value()}


def _same(one: Path, other: Path) -> bool:
    try:
        return one.resolve() == other.resolve() or one.read_bytes() == other.read_bytes()
    except OSError:
        # The driver's key may exist only in the cluster.
        return False
