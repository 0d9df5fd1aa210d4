"""Sends the calls that are messages on a user's topic."""

from __future__ import annotations

import json
import threading
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from callback_runner.decide import Impossible, Outcome, Raised, Returned
from callback_runner.interruptible import Permit
from callback_runner.record import Claim
from retrofill_core.bus.clients import is_fatal, producer
from retrofill_core.bus.envelope import new_headers, wire_headers
from retrofill_core.contract.topics import CALLBACK_RUNNER, is_own
from retrofill_core.settings import Settings

# Threads share the producer: another thread's poll may serve this one's delivery report.
POLL_SECONDS = 0.05
LOOKUP_SECONDS = 10.0
# After these errors the message is certainly not on the topic; after others it may be.
_REFUSED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.POLICY_VIOLATION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)


class TopicSender:
    """The runner's producer for users' topics, created at the first message."""

    def __init__(self, settings: Settings, instance: str) -> None:
        self._settings = settings
        self._client_id = f"{instance}-topics"
        self._lock = threading.Lock()
        self._made: Producer | None = None

    def call(self, claim: Claim, permit: Permit) -> Outcome:
        """One try. Raises ``CutOff``."""
        topic = claim.name
        if is_own(topic, self._settings.topic_prefix):
            return Impossible(f"{topic} is one of Retrofill's own topics: name another topic for the callback")
        client = self._producer()
        try:
            missing = _missing(client, topic, min(permit.left(), LOOKUP_SECONDS))
        except KafkaException as e:
            return Raised(f"Kafka did not report whether the topic {topic} exists: {e.args[0].str()}")
        if missing is not None:
            return Raised(missing, refused=True)
        return self._send(client, claim, permit)

    def _send(self, client: Producer, claim: Claim, permit: Permit) -> Outcome:
        answers: list[KafkaError | None] = []
        headers = new_headers(
            claim.event_type, CALLBACK_RUNNER.name, ce_id=claim.idempotency_key, now=claim.happened_at
        )
        permit.begin()
        try:
            client.produce(
                claim.name,
                key=str(claim.deadline_id).encode(),
                value=value_of(claim),
                headers=wire_headers(headers),
                on_delivery=lambda error, _: answers.append(error),
            )
        except (KafkaException, BufferError) as e:
            if isinstance(e, KafkaException):
                self._forget_after(e.args[0])
            return Raised(f"the message was not sent: {e}")
        while not answers:
            permit.left()
            try:
                client.poll(POLL_SECONDS)
            except KafkaException as e:
                self._forget_after(e.args[0])
                return Raised(f"Kafka did not accept the message: {e.args[0].str()}", uncertain=True)
        (error,) = answers
        if error is None:
            return Returned()
        self._forget_after(error)
        return Raised(f"Kafka did not accept the message: {error.str()}", uncertain=error.code() not in _REFUSED)

    def _producer(self) -> Producer:
        with self._lock:
            if self._made is None:
                # A message not delivered by the end of the call must not be delivered later.
                limit = {"message.timeout.ms": max(1, int(self._settings.callback_timeout_seconds * 1000))}
                self._made = producer(self._settings, self._client_id, **limit)
            return self._made

    def _forget_after(self, error: KafkaError) -> None:
        """Drop the producer after a fatal error: it accepts nothing more."""
        if is_fatal(error):
            with self._lock:
                self._made = None


def value_of(claim: Claim) -> bytes:
    """The event with the callback's arguments; the same for every try."""
    fields: dict[str, Any] = {"type": claim.event_type, **claim.fields}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _missing(client: Producer, topic: str, seconds: float) -> str | None:
    """Why the topic cannot be used, or ``None``. Never creates it. Raises ``KafkaException``."""
    found = client.list_topics(topic, timeout=seconds).topics.get(topic)
    if found is None or (found.error is None and not found.partitions):
        return f"Kafka has no topic {topic}"
    if found.error is None:
        return None
    if found.error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
        return f"Kafka has no topic {topic}: create it, callbacks never do"
    return f"the topic {topic} cannot be written: {found.error.str()}"
