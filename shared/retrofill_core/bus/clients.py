"""Kafka clients with the contract's settings: one partitioner, durable writes, committed reads.

A client reports only a timeout if it cannot connect, which is explained in terms of settings.
"""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from retrofill_core.settings import Settings

# The first message or transaction needs an id from a broker. Without a connection by then, librdkafka asks again only
# after half a second. It tells nobody when it is connected; the id takes as long anyway.
CONNECT_SECONDS = 0.05
# What else a thread that polls has to do waits as long at most: commits for others, its end.
POLL_SECONDS = 0.1
_librdkafka = logging.getLogger("librdkafka")
EXPLAIN_SECONDS = 3.0
_silent = logging.Logger("librdkafka-of-the-diagnosis", logging.CRITICAL + 1)
_UNANSWERED = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
# librdkafka property → our setting.
_FILES = {
    "ssl.ca.location": "RETROFILL_KAFKA_SSL_CA",
    "ssl.certificate.location": "RETROFILL_KAFKA_SSL_CERTIFICATE",
    "ssl.key.location": "RETROFILL_KAFKA_SSL_KEY",
}


def client_config(settings: Settings, client_id: str, **more: Any) -> dict[str, Any]:
    """What every client has, with ``more`` of one; ``RETROFILL_KAFKA_CONFIG`` takes precedence over all."""
    return {
        "bootstrap.servers": settings.bootstrap_servers(),
        "client.id": client_id,
        "broker.address.family": "v4",
        "logger": _librdkafka,
        "allow.auto.create.topics": False,
        "reconnect.backoff.max.ms": 2000,
        **security(settings),
        **more,
        **{name: value.get_secret_value() for name, value in settings.kafka_config.items()},
    }


def security(settings: Settings) -> dict[str, Any]:
    """The client's TLS and SASL configuration."""
    protocol = settings.kafka_security_protocol
    config: dict[str, Any] = {"security.protocol": protocol}
    if protocol.startswith("SASL_"):
        config |= {
            "sasl.mechanism": settings.kafka_sasl_mechanism,
            "sasl.username": settings.kafka_username,
            "sasl.password": _secret(settings.kafka_password),
        }
    if protocol.endswith("SSL"):
        config |= {
            "ssl.ca.location": settings.kafka_ssl_ca,
            "ssl.certificate.location": settings.kafka_ssl_certificate,
            "ssl.key.location": settings.kafka_ssl_key,
            "ssl.key.password": _secret(settings.kafka_ssl_key_password),
        }
    return {name: str(value) for name, value in config.items() if value is not None}


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()


def producer(settings: Settings, client_id: str, **more: Any) -> Producer:
    """An idempotent producer with ``acks=all``; partitions keys like the Java client."""
    ours = {
        "partitioner": "murmur2_random",
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 0,
        "retry.backoff.ms": 10,
        "message.max.bytes": 2_000_000,
        "compression.type": "lz4",
    }
    made = Producer(client_config(settings, client_id, **{**ours, **more}))
    made.poll(CONNECT_SECONDS)
    return made


def reader(settings: Settings, client_id: str, **more: Any) -> Consumer:
    """A ``read_committed`` consumer outside any group; the caller assigns its partitions."""
    ours = {
        "group.id": f"{settings.topic_prefix}{client_id}",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
    return Consumer(client_config(settings, client_id, **{**ours, **more}))


def admin(settings: Settings, client_id: str) -> AdminClient:
    return AdminClient(client_config(settings, client_id))


def is_fatal(error: KafkaError) -> bool:
    """Whether a client is of no use after this error."""
    return error.code() == KafkaError._FATAL or error.fatal()


def explain(settings: Settings, error: KafkaException) -> str:
    """One line on a failed connection: the cause, and the setting to check. Connects once more after a timeout."""
    cause = error.args[0] if error.args else None
    if not isinstance(cause, KafkaError):
        return str(error)
    if cause.code() == KafkaError._INVALID_ARG:
        return _unusable(settings, cause.str())
    return _unanswered(settings, cause.str()) if cause.code() in _UNANSWERED else cause.str()


def _unusable(settings: Settings, text: str) -> str:
    """Explain settings that no client can be created from."""
    for name, variable in _FILES.items():
        if name in text:
            path = getattr(settings, variable.removeprefix("RETROFILL_").lower())
            problem = "is not in PEM format" if path.is_file() else "does not exist"
            return f"{path} {problem}: check {variable}"
    if "sasl.username" in text:
        return f"{settings.kafka_security_protocol} needs a login: set RETROFILL_KAFKA_USERNAME and RETROFILL_KAFKA_PASSWORD"
    return text


def _unanswered(settings: Settings, text: str) -> str:
    errors = _connection_errors(settings)
    if errors is None:
        return text
    if KafkaError._SSL in errors:
        return (
            f"TLS with {settings.bootstrap_servers()} failed: its certificate is not from an authority in"
            f" RETROFILL_KAFKA_SSL_CA ({settings.kafka_ssl_ca or 'not set'}), or not for that host name"
            f" ({_tail(errors[KafkaError._SSL])})"
        )
    if KafkaError._AUTHENTICATION in errors:
        return (
            f"the login of {settings.kafka_username} was refused: check RETROFILL_KAFKA_PASSWORD,"
            " RETROFILL_KAFKA_USERNAME and RETROFILL_KAFKA_SASL_MECHANISM"
        )
    if KafkaError._RESOLVE in errors:
        return f"no such host in {settings.bootstrap_servers()}: check RETROFILL_KAFKA_BOOTSTRAP_SERVERS"
    return (
        f"{text}; no broker at {settings.bootstrap_servers()} answers over {settings.kafka_security_protocol}: is it"
        " running ('retrofill status')? Check RETROFILL_KAFKA_BOOTSTRAP_SERVERS and RETROFILL_KAFKA_SECURITY_PROTOCOL"
    )


def _connection_errors(settings: Settings) -> dict[int, str] | None:
    """Errors of a new connection, by code; ``None`` if Kafka answers."""
    errors: dict[int, str] = {}
    more: dict[str, Any] = {"error_cb": lambda error: errors.setdefault(error.code(), error.str()), "logger": _silent}
    client = AdminClient(client_config(settings, "retrofill-diagnosis", **more))
    try:
        client.list_topics(timeout=EXPLAIN_SECONDS)
        return None
    except KafkaException:
        # Error callbacks run only inside ``poll``.
        client.poll(0)
        return errors


def _tail(text: str) -> str:
    """The part about the certificate, without addresses and advice."""
    return text.split("SSL routines::")[-1].split(":")[0].split("(")[0].strip()
