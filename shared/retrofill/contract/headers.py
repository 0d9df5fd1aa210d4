"""The headers of messages as JSON Schemas: CloudEvents in binary mode, and what dead letters carry besides."""

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
            "description": "Unique and stable: the same for every copy of the message; answers carry it as in_reply_to",
        },
        "ce_type": {"type": "string", "description": "The message type"},
        "ce_source": {
            "type": "string",
            "format": "uri-reference",
            "minLength": 1,
            "description": "The service or client that wrote it",
        },
        "ce_time": {"type": "string", "format": "date-time", "description": "When it was written"},
        "content-type": {"type": "string", "const": "application/json", "description": "What the value is"},
        "traceparent": {
            "type": "string",
            "pattern": "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$",
            "description": "W3C trace context, where there is one",
        },
    },
}
# What each message of a service has; one of somebody else needs none of them.
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
    "origin_topic": "The topic that it was on, without the prefix",
    "origin_partition": "Its partition there; not of a message that was on no topic yet, like the next ones",
    "origin_offset": "Its offset there",
    "origin_timestamp_ms": "Its timestamp there, milliseconds since 1970",
    "dead_at": "When it was refused, ISO 8601",
    "value_sha256": "Only where the value was cut: SHA-256 of all of it, hexadecimal",
    "value_length": "Only where the value was cut: how many bytes all of it has",
    "key_sha256": "Only where the key was cut: SHA-256 of all of it, hexadecimal",
    "key_length": "Only where the key was cut: how many bytes all of it has",
    "headers_dropped": "Only where not all headers fitted: how many were left out",
}
DEAD_LETTER: Document = {
    "type": "object",
    "description": "The headers of the original message, and these.",
    "properties": {f"retrofill_{name}": {"type": "string", "description": text} for name, text in _DEAD_LETTER.items()},
    "required": [f"retrofill_{name}" for name in ("reason", "service", "origin_topic", "dead_at")],
}
