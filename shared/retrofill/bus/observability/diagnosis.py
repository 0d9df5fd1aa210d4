"""Why Kafka cannot be used, in the words of our settings: the library itself only says that nothing answered in time."""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from retrofill.bus.clients import common_config
from retrofill.settings import Settings

CONNECT_SECONDS = 3.0
_silent = logging.Logger("librdkafka-of-the-diagnosis", logging.CRITICAL + 1)
_UNANSWERED = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
# The library's names of what a client is made of, by our settings.
_FILES = {
    "ssl.ca.location": "RETROFILL_KAFKA_SSL_CA",
    "ssl.certificate.location": "RETROFILL_KAFKA_SSL_CERTIFICATE",
    "ssl.key.location": "RETROFILL_KAFKA_SSL_KEY",
}


def why(settings: Settings, error: KafkaException) -> str:
    """One line on the cause and the setting to look at. Connects once more where the error does not know the cause."""
    cause = error.args[0] if error.args else None
    if not isinstance(cause, KafkaError):
        return str(error)
    if cause.code() == KafkaError._INVALID_ARG:
        return _unusable(settings, cause.str())
    return _unanswered(settings, cause.str()) if cause.code() in _UNANSWERED else cause.str()


def _unusable(settings: Settings, said: str) -> str:
    """Of which no client could be made."""
    for name, variable in _FILES.items():
        if name in said:
            path = getattr(settings, variable.removeprefix("RETROFILL_").lower())
            wrong = "cannot be used, it is not in PEM format" if path.is_file() else "is not there"
            return f"{path} {wrong}: check {variable}"
    if "sasl.username" in said:
        return f"{settings.kafka_security_protocol} needs a login: set RETROFILL_KAFKA_USERNAME and RETROFILL_KAFKA_PASSWORD"
    return said


def _unanswered(settings: Settings, said: str) -> str:
    troubles = _troubles(settings)
    if troubles is None:
        return said
    if KafkaError._SSL in troubles:
        return (
            f"no TLS with {settings.bootstrap_servers()}: its certificate is not from an authority in RETROFILL_KAFKA_SSL_CA"
            f" ({settings.kafka_ssl_ca or 'not set'}), or not for that name ({_tail(troubles[KafkaError._SSL])})"
        )
    if KafkaError._AUTHENTICATION in troubles:
        return (
            f"the login of {settings.kafka_username} is refused: check RETROFILL_KAFKA_PASSWORD, RETROFILL_KAFKA_USERNAME"
            " and RETROFILL_KAFKA_SASL_MECHANISM"
        )
    if KafkaError._RESOLVE in troubles:
        return f"no such host in {settings.bootstrap_servers()}: check RETROFILL_KAFKA_BOOTSTRAP_SERVERS"
    return (
        f"{said}; nothing at {settings.bootstrap_servers()} talks {settings.kafka_security_protocol}: is it up ('retrofill"
        " status')? Check RETROFILL_KAFKA_BOOTSTRAP_SERVERS and RETROFILL_KAFKA_SECURITY_PROTOCOL"
    )


def _troubles(settings: Settings) -> dict[int, str] | None:
    """What a client of its own hears of its connections, by the error's code; ``None``: Kafka answers it."""
    heard: dict[int, str] = {}
    hears: dict[str, Any] = {"error_cb": lambda error: heard.setdefault(error.code(), error.str()), "logger": _silent}
    client = AdminClient({**common_config(settings, "retrofill-diagnosis"), **hears})
    try:
        client.list_topics(timeout=CONNECT_SECONDS)
        return None
    except KafkaException:
        # The reasons come to who asks for them.
        client.poll(0)
        return heard


def _tail(said: str) -> str:
    """The part about the certificate, without addresses and advice."""
    return said.split("SSL routines::")[-1].split(":")[0].split("(")[0].strip()
