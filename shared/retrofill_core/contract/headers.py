"""Message headers as JSON Schemas: CloudEvents in binary mode, and those of dead letters."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

CLOUD_EVENT: Document = {
    "type": "object",
    "description": "Attributes of CloudEvents 1.0 in binary mode, and the trace context.",
    "properties": {
        "ce_specversion": {"type": "string", "const": "1.0", "description": "Version of CloudEvents"},
        "ce_id": {
            "type": "string",
            "minLength": 1,
            "description": "Unique and stable: the same in every copy of the message; replies carry it as in_reply_to",
        },
        "ce_type": {"type": "string", "description": "The message type"},
        "ce_source": {
            "type": "string",
            "format": "uri-reference",
            "minLength": 1,
            "description": "The service or client that published it",
        },
        "ce_time": {"type": "string", "format": "date-time", "description": "When it was published"},
        "ce_subject": {
            "type": "string",
            "pattern": "^attempts/[0-9]+/runs/[0-9]+$",
            "description": "Of a driver's report about a run: which attempt and run",
        },
        "content-type": {"type": "string", "const": "application/json", "description": "Media type of the value"},
        "traceparent": {
            "type": "string",
            "pattern": "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$",
            "description": "W3C trace context, if there is one",
        },
    },
}
# Present in every message of a service. Messages of other clients need none.
ALWAYS = ["ce_specversion", "ce_id", "ce_type", "ce_source", "ce_time", "content-type"]
EXAMPLE: Document = {
    "ce_specversion": "1.0",
    "ce_id": "5c1d9f04-3c6b-4f5e-8a11-2f0d8f0c7e21",
    "ce_time": "2026-03-02T08:00:00.000000+00:00",
    "content-type": "application/json",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
}

_DEAD_LETTER = {
    "reason": "Why it was refused, in one line",
    "service": "Which service refused it",
    "origin_topic": "The original topic, without the prefix",
    "origin_partition": "The original partition; this and the next two are absent if the message was never on a topic",
    "origin_offset": "The original offset",
    "origin_timestamp_ms": "The original timestamp, in milliseconds since 1970",
    "dead_at": "When it was refused, ISO 8601",
    "value_sha256": "Only if the value was truncated: SHA-256 of the whole value, hexadecimal",
    "value_length": "Only if the value was truncated: its original length in bytes",
    "key_sha256": "Only if the key was truncated: SHA-256 of the whole key, hexadecimal",
    "key_length": "Only if the key was truncated: its original length in bytes",
    "headers_dropped": "Only if not all headers fit: how many were dropped",
}
DEAD_LETTER: Document = {
    "type": "object",
    "description": "The original headers, and these.",
    "properties": {f"retrofill_{name}": {"type": "string", "description": text} for name, text in _DEAD_LETTER.items()},
    "required": [f"retrofill_{name}" for name in ("reason", "service", "origin_topic", "dead_at")],
}
