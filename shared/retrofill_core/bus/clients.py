"""Kafka clients with the contract's settings: one partitioner, durable writes, committed reads."""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from retrofill_core.settings import Settings

# The first message or transaction needs an id from a broker. Without a connection by then, librdkafka asks again only
# after half a second. It tells nobody when it is connected; the id takes as long anyway.
CONNECT_SECONDS = 0.05
# What else a thread that polls has to do waits as long at most: commits for others, its end.
POLL_SECONDS = 0.1
_librdkafka = logging.getLogger("librdkafka")


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
