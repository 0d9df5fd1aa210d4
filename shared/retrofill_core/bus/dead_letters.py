"""Dead letters: the original bytes, with their origin and the reason in headers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime

from retrofill_core.bus.envelope import MAX_HEADER_BYTES, Record, header_bytes
from retrofill_core.contract.topics import Topic
from retrofill_core.store.outbox import HeaderList, Outgoing

# Larger values are cut: the message's own topic may have larger limits than the dead letters'.
MAX_VALUE_BYTES = 1_900_000
MAX_KEY_BYTES = 10_000
MAX_REASON = 1_000
PREFIX = "retrofill_"


def dead_letter(record: Record, reason: str, service: str, now: datetime | None = None) -> Outgoing:
    """The dead letter of ``record``: its key, value and headers, plus ``retrofill_*`` headers."""
    origin = {
        "origin_partition": str(record.partition),
        "origin_offset": str(record.offset),
        "origin_timestamp_ms": str(record.timestamp_ms),
    }
    # A replayed message that failed again keeps only the newest reason.
    original = tuple((name, raw) for name, raw in record.raw_headers if not name.startswith(PREFIX))
    message = Outgoing(record.topic, record.key, record.value, original)
    return _letter(message, reason, service, now, origin)


def dead_letter_of(message: Outgoing, reason: str, service: str, now: datetime | None = None) -> Outgoing:
    """The dead letter of an unpublished ``message``; a replay publishes it on its topic."""
    return _letter(message, reason, service, now, {})


def _letter(message: Outgoing, reason: str, service: str, now: datetime | None, origin: Mapping[str, str]) -> Outgoing:
    key, cut_key = _cut("key", message.key, MAX_KEY_BYTES)
    value, cut_value = _cut("value", message.value, MAX_VALUE_BYTES)
    headers = _first_headers(message.headers)
    dropped = len(message.headers) - len(headers)
    ours = {
        "reason": " ".join(reason.split())[:MAX_REASON],
        "service": service,
        "origin_topic": message.topic,
        **origin,
        "dead_at": (now or datetime.now(UTC)).isoformat(),
        **cut_key,
        **cut_value,
        **({"headers_dropped": str(dropped)} if dropped else {}),
    }
    added: HeaderList = tuple((f"{PREFIX}{name}", text.encode("utf-8", "replace")) for name, text in ours.items())
    return Outgoing(Topic.DEAD_LETTERS, key, value, headers + added)


def _cut(name: str, data: bytes | None, max_bytes: int) -> tuple[bytes | None, dict[str, str]]:
    """The first ``max_bytes`` of ``data``; if cut, also headers with its hash and length."""
    if data is None or len(data) <= max_bytes:
        return data, {}
    return data[:max_bytes], {f"{name}_sha256": hashlib.sha256(data).hexdigest(), f"{name}_length": str(len(data))}


def _first_headers(headers: HeaderList) -> HeaderList:
    """The first headers that fit into ``MAX_HEADER_BYTES``."""
    kept: list[tuple[str, bytes | None]] = []
    size = 0
    for header in headers:
        size += header_bytes([header])
        if size > MAX_HEADER_BYTES:
            break
        kept.append(header)
    return tuple(kept)
