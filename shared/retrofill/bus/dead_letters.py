"""Dead letters: the original bytes with where they came from and why they were refused."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime

from retrofill.bus.envelope import MAX_HEADER_BYTES, Record, header_bytes
from retrofill.contract.topics import Topic
from retrofill.store.outbox import HeaderList, Outgoing

# Beyond this the bytes are cut: what arrived on a topic with larger limits than ours must still fit into ours.
MAX_VALUE_BYTES = 1_900_000
MAX_KEY_BYTES = 10_000
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
    key, cut_key = _cut("key", message.key, MAX_KEY_BYTES)
    value, cut_value = _cut("value", message.value, MAX_VALUE_BYTES)
    headers = _first_headers(message.headers)
    dropped = len(message.headers) - len(headers)
    ours = {
        "reason": " ".join(reason.split())[:MAX_REASON],
        "service": service,
        "origin_topic": message.topic,
        **place,
        "dead_at": (now or datetime.now(UTC)).isoformat(),
        **cut_key,
        **cut_value,
        **({"headers_dropped": str(dropped)} if dropped else {}),
    }
    added: HeaderList = tuple((f"{PREFIX}{name}", text.encode("utf-8", "replace")) for name, text in ours.items())
    return Outgoing(Topic.DEAD_LETTERS, key, value, headers + added)


def _cut(name: str, data: bytes | None, most: int) -> tuple[bytes | None, dict[str, str]]:
    """The first ``most`` bytes, and where these are not all, the hash and length of all."""
    if data is None or len(data) <= most:
        return data, {}
    return data[:most], {f"{name}_sha256": hashlib.sha256(data).hexdigest(), f"{name}_length": str(len(data))}


def _first_headers(headers: HeaderList) -> HeaderList:
    """As many of the first headers as fit."""
    kept: list[tuple[str, bytes | None]] = []
    size = 0
    for header in headers:
        size += header_bytes([header])
        if size > MAX_HEADER_BYTES:
            break
        kept.append(header)
    return tuple(kept)
