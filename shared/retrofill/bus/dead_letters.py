"""Dead letters: the original bytes with where they came from and why they were refused."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime

from retrofill.bus.envelope import Record
from retrofill.bus.outbox import HeaderList, Outgoing
from retrofill.bus.topics import Topic

# Beyond this the bytes are cut: what arrived on a topic with larger limits than ours must still fit into ours.
MAX_VALUE_BYTES = 1_900_000
MAX_REASON = 1_000
PREFIX = "retrofill_"


def dead_letter(record: Record, reason: str, service: str, now: datetime | None = None) -> Outgoing:
    """The dead letter of ``record``: its key, value and headers, and ours that tell origin and reason."""
    place = {
        "origin_partition": str(record.partition),
        "origin_offset": str(record.offset),
        "origin_timestamp_ms": str(record.timestamp_ms),
    }
    # A letter that was replayed and died again keeps only the newest reason.
    original = tuple((name, raw) for name, raw in record.raw_headers if not name.startswith(PREFIX))
    message = Outgoing(record.topic, record.key, record.value, original)
    return _letter(message, reason, service, now, place)


def dead_letter_of(message: Outgoing, reason: str, service: str, now: datetime | None = None) -> Outgoing:
    """The dead letter of a ``message`` that was on no topic yet: to replay it is to publish it on its own."""
    return _letter(message, reason, service, now, {})


def _letter(message: Outgoing, reason: str, service: str, now: datetime | None, place: Mapping[str, str]) -> Outgoing:
    value = message.value
    ours = {
        "reason": " ".join(reason.split())[:MAX_REASON],
        "service": service,
        "origin_topic": message.topic,
        **place,
        "dead_at": (now or datetime.now(UTC)).isoformat(),
    }
    if value is not None and len(value) > MAX_VALUE_BYTES:
        ours["value_sha256"] = hashlib.sha256(value).hexdigest()
        ours["value_length"] = str(len(value))
        value = value[:MAX_VALUE_BYTES]
    added: HeaderList = tuple((f"{PREFIX}{name}", text.encode("utf-8", "replace")) for name, text in ours.items())
    return Outgoing(Topic.DEAD_LETTERS, message.key, value, message.headers + added)
