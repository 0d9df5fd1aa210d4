"""Generates ``schemas/``: a JSON Schema (2020-12) for each message type, and the topics as an AsyncAPI 3.0 document.

Run as ``python -m retrofill.messages.schemas [--check] FOLDER``. A tool of the repository: it needs the dev extra.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from retrofill.bus.topics import COMPACTED, SERVICES, Topic
from retrofill.messages.base import REGISTRY, Message
from retrofill.messages.topics_of import TRAFFIC, Traffic
from retrofill.settings import Settings

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ASYNCAPI = "asyncapi.yaml"
KAFKA_BINDING = "0.5.0"
COMMAND = "python -m retrofill.messages.schemas"
# Two things on topics that are no message type of ours.
TOMBSTONE = "PipelineTombstone"
DEAD_LETTER = "DeadLetter"

Document = dict[str, Any]


def generate() -> dict[str, str]:
    """The text of every file of the folder, by name. The same models always give the same bytes."""
    files = {f"{name}.json": _as_json(schema_of(REGISTRY[name])) for name in sorted(REGISTRY)}
    files[ASYNCAPI] = yaml.safe_dump(asyncapi(), sort_keys=False, allow_unicode=True, width=110)
    return files


def schema_of(model: type[Message]) -> Document:
    """The JSON Schema of one message type, as a reader takes it."""
    return {"$schema": DIALECT, **model.model_json_schema(by_alias=True, mode="validation")}


def asyncapi() -> Document:
    """The topics, their messages and which service sends and receives what."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Retrofill",
            "version": "1.0.0",
            "description": (
                "The topics of Retrofill, with the default prefix. Values are UTF-8 JSON; attributes are CloudEvents "
                "binary-mode headers. A message without headers is accepted where its body has the field type."
            ),
        },
        "servers": {
            "embedded": {
                "host": f"127.0.0.1:{Settings.model_fields['kafka_port'].default}",
                "protocol": "kafka",
                "description": "The broker of the embedded stack, at its preferred port",
            }
        },
        "defaultContentType": "application/json",
        "channels": {topic.value: _channel(topic, TRAFFIC[topic]) for topic in Topic},
        "operations": _operations(),
        "components": {
            "messages": {
                **{name: _message(REGISTRY[name]) for name in sorted(REGISTRY)},
                TOMBSTONE: _tombstone(),
                DEAD_LETTER: _dead_letter(),
            },
            "messageTraits": {"cloudEvent": {"headers": {"$ref": "#/components/schemas/CloudEventHeaders"}}},
            "schemas": {"CloudEventHeaders": _cloud_event_headers(), "DeadLetterHeaders": _dead_letter_headers()},
        },
    }


def _channel(topic: Topic, traffic: Traffic) -> Document:
    binding: Document = {"bindingVersion": KAFKA_BINDING}
    if topic in COMPACTED:
        binding = {"topicConfiguration": {"cleanup.policy": ["compact"]}, **binding}
    writers = [*([traffic.open] if traffic.open else []), *(writer.name for writer in traffic.writers)]
    return {
        "address": f"{Settings.model_fields['topic_prefix'].default}{topic}",
        "description": f"Key: {traffic.key}. Written by {', '.join(writers)}.",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names_on(topic)},
        "bindings": {"kafka": binding},
    }


def names_on(topic: Topic) -> list[str]:
    """The names of all messages of a topic in the document."""
    names = [model.__name__ for model in TRAFFIC[topic].types]
    if topic == Topic.PIPELINES:
        names.append(TOMBSTONE)
    if topic == Topic.DEAD_LETTERS:
        names.append(DEAD_LETTER)
    return names


def _operations() -> Document:
    operations: Document = {}
    for service in SERVICES.values():
        for topic in service.reads:
            operations[f"{service.name}.receive.{topic}"] = _operation("receive", service.name, topic)
        for topic, traffic in TRAFFIC.items():
            if service in traffic.writers:
                operations[f"{service.name}.send.{topic}"] = _operation("send", service.name, topic)
    return operations


def _operation(action: str, service: str, topic: Topic) -> Document:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{topic}"},
        "tags": [{"name": service}],
        "messages": [{"$ref": f"#/channels/{topic}/messages/{name}"} for name in names_on(topic)],
    }


def _message(model: type[Message]) -> Document:
    return {
        "summary": " ".join((model.__doc__ or "").split("\n\n")[0].split()),
        "payload": {"$ref": f"./{model.__name__}.json"},
        **_keyed(next(traffic.key for traffic in TRAFFIC.values() if model in traffic.types)),
        "traits": [{"$ref": "#/components/messageTraits/cloudEvent"}],
    }


def _keyed(key: str) -> Document:
    return {
        "bindings": {"kafka": {"key": {"type": "string", "description": key}, "bindingVersion": KAFKA_BINDING}},
    }


def _tombstone() -> Document:
    return {
        "summary": "A null value: the pipeline is removed.",
        "payload": {"type": "null"},
        **_keyed(TRAFFIC[Topic.PIPELINES].key),
    }


def _dead_letter() -> Document:
    return {
        "summary": "The original bytes and headers of a message that could not be handled, and why.",
        "contentType": "application/octet-stream",
        "headers": {"$ref": "#/components/schemas/DeadLetterHeaders"},
        "payload": {},
        **_keyed(TRAFFIC[Topic.DEAD_LETTERS].key),
    }


def _cloud_event_headers() -> Document:
    return _headers(
        {
            "ce_specversion": "Always 1.0",
            "ce_id": "Unique and stable: the same for every copy of the message; answers carry it as in_reply_to",
            "ce_type": "The message type",
            "ce_source": "The service or client that wrote it",
            "ce_time": "When it was written, RFC 3339",
            "content-type": "Always application/json",
            "traceparent": "W3C trace context, where there is one",
        }
    )


def _dead_letter_headers() -> Document:
    return _headers(
        {
            "retrofill_reason": "Why it was refused, in one line",
            "retrofill_service": "Which service refused it",
            "retrofill_origin_topic": "The topic that it was on, without the prefix",
            "retrofill_origin_partition": "Its partition there",
            "retrofill_origin_offset": "Its offset there",
            "retrofill_origin_timestamp_ms": "Its timestamp there",
            "retrofill_dead_at": "When it was refused, ISO 8601",
            "retrofill_value_sha256": "Only where the value was cut: the hash of all of it",
            "retrofill_value_length": "Only where the value was cut: how many bytes all of it has",
        }
    )


def _headers(descriptions: dict[str, str]) -> Document:
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": text} for name, text in descriptions.items()},
    }


def _as_json(document: Document) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def differing(folder: Path) -> list[str]:
    """The names of the files that are missing, not as generated, or left over."""
    files = generate()
    present = {path.name: path.read_text("utf-8") for path in folder.glob("*") if path.is_file()}
    return sorted(name for name in files.keys() | present.keys() if files.get(name) != present.get(name))


def write(folder: Path) -> None:
    """Make the folder hold exactly what is generated."""
    folder.mkdir(parents=True, exist_ok=True)
    files = generate()
    for path in folder.glob("*"):
        if path.is_file() and path.name not in files:
            path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Write the folder, or with ``--check`` compare it; the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Generate the schemas of all messages.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail where a file is not current")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    if not options.check:
        write(options.folder)
        return 0
    stale = differing(options.folder)
    if stale:
        sys.stderr.write(f"not current: {', '.join(stale)}; run '{COMMAND} {options.folder}'\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
