"""Classifies a message before a handler sees it: readable, misplaced, or a dead letter. Pure."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from retrofill_core.bus.envelope import BAD_NAME, ID_NAMESPACE, MAX_HEADER_BYTES, Record, header_bytes
from retrofill_core.bus.handler import Received
from retrofill_core.contract.base import Undecodable, decode, decode_object
from retrofill_core.contract.topics import COMPACTED, REPUBLISHED, Topic, partition_of

MAX_KEY = 200


@dataclass(frozen=True)
class Dead:
    """A message that cannot be read, and why."""

    record: Record
    reason: str


@dataclass(frozen=True)
class Misplaced:
    """A message to republish under ``key``, to its owner's partition."""

    record: Record
    key: str
    ce_id: str


Verdict = Received | Misplaced | Dead | tuple[Misplaced, Received]


def triage(record: Record, partitions: int, topic_id: str) -> Verdict:
    """Classify one message. ``topic_id`` is Kafka's, so derived ids differ in a recreated topic."""
    derived = record.ce_id or str(uuid.uuid5(ID_NAMESPACE, f"{topic_id}:{record.partition}:{record.offset}"))
    try:
        if record.bad_header == BAD_NAME:
            raise Undecodable("the name of a header is not UTF-8, so no header could be read")
        if record.bad_header is not None:
            raise Undecodable(f"the header {record.bad_header!r} is not UTF-8")
        if "\0" in (record.ce_id or ""):
            raise Undecodable("the header 'ce_id' holds a NUL character, which the database cannot store")
        if (size := header_bytes(record.raw_headers)) > MAX_HEADER_BYTES:
            raise Undecodable(f"the headers have {size:,} bytes, more than {MAX_HEADER_BYTES:,}")
        key = read_key(record)
        if key is None:
            return Misplaced(record, _fresh_id(record, derived), derived)
        elsewhere = partition_of(key, partitions) != record.partition
        if elsewhere and record.topic not in REPUBLISHED:
            # Its reader may not write to this topic, and services always use the right partition.
            raise Undecodable("the partition does not match the key: no Retrofill service wrote this message")
        if elsewhere and record.topic not in COMPACTED:
            return Misplaced(record, key, derived)
        if record.value is None and record.topic in COMPACTED:
            message = None
        else:
            message = decode(record.value, record.headers.get("ce_type"))
    except Undecodable as e:
        return Dead(record, str(e))
    received = Received(record, key, message, derived, misplaced=elsewhere)
    return (Misplaced(record, key, derived), received) if elsewhere else received


def read_key(record: Record) -> str | None:
    """The key; ``None`` for a request without one, which gets a new id. Raises ``Undecodable``."""
    try:
        key = (record.key or b"").decode("utf-8")
    except UnicodeDecodeError as e:
        raise Undecodable("the key is not UTF-8") from e
    if not key:
        if record.topic == Topic.BACKFILL_REQUESTS:
            return None
        raise Undecodable("the message has no key")
    if not _is_id(key):
        raise Undecodable(f"invalid key: use 1 to {MAX_KEY} printable characters")
    return key


def _fresh_id(record: Record, derived: str) -> str:
    """The id for a request without a key: the ``id`` in its body, or else its ``ce_id``.

    The republished message must have a valid key, so an invalid id is replaced by a derived one.
    """
    if record.value is None:
        raise Undecodable("the value is null")
    named = decode_object(record.value).get("id")
    for id in (named, derived):
        if isinstance(id, str) and id and _is_id(id):
            return id
    return str(uuid.uuid5(ID_NAMESPACE, derived))


def _is_id(text: str) -> bool:
    return len(text) <= MAX_KEY and text.isprintable()
