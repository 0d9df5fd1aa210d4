"""Explains a failed Kafka connection in terms of settings; the client reports only a timeout."""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from retrofill_core.bus.clients import client_config
from retrofill_core.settings import Settings

CONNECT_SECONDS = 3.0
_silent = logging.Logger("librdkafka-of-the-diagnosis", logging.CRITICAL + 1)
_UNANSWERED = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
# librdkafka property → our setting.
_FILES = {
    "ssl.ca.location": "RETROFILL_KAFKA_SSL_CA",
    "ssl.certificate.location": "RETROFILL_KAFKA_SSL_CERTIFICATE",
    "ssl.key.location": "RETROFILL_KAFKA_SSL_KEY",
}


def explain(settings: Settings, error: KafkaException) -> str:
    """One line: the cause, and the setting to check. Connects once more after a timeout."""
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
        client.list_topics(timeout=CONNECT_SECONDS)
        return None
    except KafkaException:
        # Error callbacks run only inside ``poll``.
        client.poll(0)
        return errors


def _tail(text: str) -> str:
    """The part about the certificate, without addresses and advice."""
    return text.split("SSL routines::")[-1].split(":")[0].split("(")[0].strip()
