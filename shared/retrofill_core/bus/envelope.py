"""Message envelopes: a JSON value, a key, and CloudEvents binary-mode headers; and the envelopes of dead letters.

A dead letter has the original bytes, with their origin and the reason in headers.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from retrofill_core.contract.base import Message
from retrofill_core.contract.topics import Topic
from retrofill_core.store.outbox import HeaderList, Outgoing

SPEC_VERSION = "1.0"
# Namespace of derived ids: the same message at the same offset always gets the same ce_id.
ID_NAMESPACE = uuid.UUID("4d3f9a56-7a43-5f0e-9d3b-2b6c1a0e8f11")
# ``Record.bad_header`` for a header whose name is not UTF-8; then no header could be read.
BAD_NAME = ""
# Names and values of one message's headers. Copies and dead letters carry them too, and must fit.
MAX_HEADER_BYTES = 50_000

Headers = dict[str, str]


@dataclass(frozen=True)
class Record:
    """One consumed message. ``headers``: those in UTF-8; ``bad_header``: the first other name."""

    topic: str  # without the prefix
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    raw_headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    bad_header: str | None = None

    @cached_property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        return len(self.key or b"") + len(self.value or b"") + header_bytes(self.raw_headers)

    @property
    def ce_id(self) -> str | None:
        """The CloudEvents id; ``None`` if missing or empty."""
        return self.headers.get("ce_id") or None


def new_headers(message_type: str, source: str, *, ce_id: str | None = None, now: datetime | None = None) -> Headers:
    """CloudEvents headers of a new message."""
    return {
        "ce_specversion": SPEC_VERSION,
        "ce_id": ce_id or str(uuid.uuid4()),
        "ce_type": message_type,
        "ce_source": source,
        "ce_time": (now or datetime.now(UTC)).isoformat(),
        "content-type": "application/json",
    }


def headers_of(message: Message, source: str) -> Headers:
    """CloudEvents headers for ``message`` of ``source`` (a service's or client's name)."""
    return new_headers(message.type, source)


def wire_headers(headers: Mapping[str, str]) -> list[tuple[str, str | bytes | None]]:
    """Headers in the Kafka client's format."""
    return list(headers.items())


def read_headers(raw: Iterable[tuple[str, bytes | None]] | None) -> tuple[Headers, str | None]:
    """Headers as text, and the name of the first that is not UTF-8."""
    headers: Headers = {}
    bad = None
    for name, value in raw or ():
        try:
            headers[name] = (value or b"").decode("utf-8")
        except UnicodeDecodeError:
            bad = bad or name
    return headers, bad


def header_bytes(raw: Iterable[tuple[str, bytes | None]]) -> int:
    """Total bytes of header names and values."""
    return sum(len(name.encode("utf-8", "replace")) + len(value or b"") for name, value in raw)


# Larger values are cut: the message's own topic may have larger limits than the dead letters'.
MAX_VALUE_BYTES = 1_900_000
MAX_KEY_BYTES = 10_000
MAX_REASON = 1_000
DEAD_LETTER_PREFIX = "retrofill_"


def dead_letter(record: Record, reason: str, service: str, now: datetime | None = None) -> Outgoing:
    """The dead letter of ``record``: its key, value and headers, plus ``retrofill_*`` headers."""
    origin = {
        "origin_partition": str(record.partition),
        "origin_offset": str(record.offset),
        "origin_timestamp_ms": str(record.timestamp_ms),
    }
    # A replayed message that failed again keeps only the newest reason.
    original = tuple((name, raw) for name, raw in record.raw_headers if not name.startswith(DEAD_LETTER_PREFIX))
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
    added: HeaderList = tuple(
        (f"{DEAD_LETTER_PREFIX}{name}", text.encode("utf-8", "replace")) for name, text in ours.items()
    )
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
