"""The topics as an AsyncAPI 3.0 document: messages, keys, headers, senders and receivers."""

from __future__ import annotations

from typing import Any

from retrofill_core.contract import topics_of
from retrofill_core.contract.base import REGISTRY, Message
from retrofill_core.contract.topics import (
    CALLBACK_RUNNER,
    COMPACTED,
    PLANNER,
    RUN_STARTER,
    SERVICES,
    WATCHER,
    Service,
    Topic,
)
from retrofill_core.contract.topics_of import TRAFFIC, Document, Traffic
from retrofill_core.settings import Settings
from tools.examples import example_of

KAFKA_BINDING = "0.5.0"
# Messages without a type of their own.
TOMBSTONE = "PipelineTombstone"
DEAD_LETTER = "DeadLetter"
OTHERS = "others"
ABOUT_SERVICES: dict[Service, str] = {
    PLANNER: "Turns requests into backfills with all their runs.",
    RUN_STARTER: "Starts runs within their limits and follows them to their ends.",
    WATCHER: "Decides which deadlines were met and which were missed.",
    CALLBACK_RUNNER: "Calls the callbacks of missed deadlines, failed runs and ended backfills.",
}
MAX_MESSAGE_BYTES = 2_097_152


def _default(setting: str) -> Any:
    return Settings.model_fields[setting].default


def document() -> Document:
    """The document, as JSON data."""
    return {
        "asyncapi": "3.0.0",
        "info": _info(),
        "defaultContentType": "application/json",
        "servers": _servers(),
        "channels": {topic.value: _channel(topic, TRAFFIC[topic]) for topic in Topic},
        "operations": _operations(),
        "components": {
            "parameters": {
                "prefix": {
                    "default": _default("topic_prefix"),
                    "description": "Prefix of all topics of one installation, the setting RETROFILL_TOPIC_PREFIX",
                }
            },
            "messages": {
                **{name: _message(REGISTRY[name]) for name in sorted(REGISTRY)},
                TOMBSTONE: _tombstone(),
                DEAD_LETTER: _dead_letter(),
            },
            "schemas": {"CloudEventHeaders": topics_of.CLOUD_EVENT, "DeadLetterHeaders": topics_of.DEAD_LETTER},
        },
    }


def _info() -> Document:
    return {
        "title": "Retrofill",
        "version": "1.0.0",
        "description": (
            "The topics of Retrofill. Values are UTF-8 JSON, one object; attributes are CloudEvents binary-mode "
            "headers. A message without headers is accepted if its body has the field type. All topics have the "
            "same number of partitions, fixed at init (RETROFILL_PARTITIONS), and messages with one key are "
            "on one partition, chosen by murmur2 hash as in Kafka's Java clients. Read with the isolation "
            "level read_committed: each message appears once, and in order per key."
        ),
        "license": {"name": "Apache-2.0"},
        "tags": [
            *({"name": service.name, "description": about} for service, about in ABOUT_SERVICES.items()),
            {"name": OTHERS, "description": "Users and the CLI, and run-starters as hosts of drivers."},
        ],
    }


def _servers() -> Document:
    return {
        "cluster": {
            "host": "{brokers}",
            "protocol": "kafka",
            "description": "Your own Kafka, with the security that its clients are configured for",
            "variables": {
                "brokers": {
                    "default": "localhost:9092",
                    "description": "Its bootstrap servers, the setting RETROFILL_KAFKA_BOOTSTRAP_SERVERS",
                }
            },
        },
        "embedded": {
            "host": f"127.0.0.1:{_default('kafka_port')}",
            "protocol": "kafka",
            "description": "The broker of the embedded stack, at its preferred port",
        },
    }


# topics


def _channel(topic: Topic, traffic: Traffic) -> Document:
    return {
        "address": f"{{prefix}}{topic}",
        "title": str(topic),
        "summary": traffic.about,
        "description": _describe(topic, traffic),
        "parameters": {"prefix": {"$ref": "#/components/parameters/prefix"}},
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names_on(topic)},
        "bindings": {
            "kafka": {
                "partitions": _default("partitions"),
                "replicas": _default("replication_factor"),
                "topicConfiguration": _configuration(topic),
                "bindingVersion": KAFKA_BINDING,
            }
        },
    }


def _describe(topic: Topic, traffic: Traffic) -> str:
    line = f"Key: {traffic.key}. Written by {', '.join(writers_of(traffic))}. Read by {', '.join(readers_of(topic))}."
    return f"{line} Compacted." if topic in COMPACTED else line


def writers_of(traffic: Traffic) -> list[str]:
    """Everyone who writes a topic."""
    return [*([traffic.open] if traffic.open else []), *(writer.name for writer in traffic.writers)]


def readers_of(topic: Topic) -> list[str]:
    """The services that read a topic, and "anyone"."""
    return [*(service.name for service in SERVICES.values() if topic in service.reads), "anyone"]


def _configuration(topic: Topic) -> Document:
    configuration: Document = {"max.message.bytes": MAX_MESSAGE_BYTES}
    if topic in COMPACTED:
        return {"cleanup.policy": ["compact"], **configuration}
    if topic == Topic.DEAD_LETTERS:
        return {"retention.ms": -1, **configuration}
    return configuration


def names_on(topic: Topic) -> list[str]:
    """The document's names of all messages on a topic."""
    return _names(TRAFFIC[topic].types, topic)


def _names(types: tuple[type[Message], ...], topic: Topic) -> list[str]:
    names = [model.__name__ for model in types]
    if topic == Topic.PIPELINES and types:
        names.append(TOMBSTONE)
    if topic == Topic.DEAD_LETTERS:
        names.append(DEAD_LETTER)
    return names


# who sends and receives


def _operations() -> Document:
    operations: Document = {}
    for service in SERVICES.values():
        for topic in service.reads:
            operations[f"{service.name}.receive.{topic}"] = _receives(service, topic)
        for topic, traffic in TRAFFIC.items():
            if service in traffic.writers:
                operations[f"{service.name}.send.{topic}"] = _operation(
                    "send", service.name, topic, _names(traffic.of_services, topic)
                )
    for topic, traffic in TRAFFIC.items():
        if traffic.open:
            operations[f"{OTHERS}.send.{topic}"] = {
                **_operation("send", OTHERS, topic, _names(traffic.of_others, topic)),
                "summary": f"By {traffic.open}",
            }
    return operations


def _receives(service: Service, topic: Topic) -> Document:
    group = {"type": "string", "default": service.group(_default("topic_prefix"))}
    return {
        **_operation("receive", service.name, topic, names_on(topic)),
        "bindings": {"kafka": {"groupId": group, "bindingVersion": KAFKA_BINDING}},
    }


def _operation(action: str, by: str, topic: Topic, names: list[str]) -> Document:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{topic}"},
        "tags": [{"name": by}],
        "messages": [{"$ref": f"#/channels/{topic}/messages/{name}"} for name in names],
    }


# messages


def summary_of(model: type[Message]) -> str:
    """The first paragraph of a type's docstring, as one line of Markdown."""
    return " ".join((model.__doc__ or "").split("\n\n")[0].replace("``", "`").split())


def _message(model: type[Message]) -> Document:
    name = model.__name__
    traffic = next(traffic for traffic in TRAFFIC.values() if model in traffic.types)
    by_service = model in traffic.of_services
    source = traffic.writers[0].name if by_service else "ada"
    return {
        "name": name,
        "summary": summary_of(model),
        "contentType": "application/json",
        "headers": _headers(name, always=by_service),
        "payload": {"$ref": f"./{name}.json"},
        **_keyed(traffic.key),
        "examples": [
            {
                "name": name,
                "headers": {**topics_of.EXAMPLE, "ce_type": name, "ce_source": source},
                "payload": example_of(name),
            }
        ],
    }


def _headers(name: str, *, always: bool) -> Document:
    return {
        "type": "object",
        "allOf": [{"$ref": "#/components/schemas/CloudEventHeaders"}],
        "properties": {"ce_type": {"const": name}},
        **({"required": topics_of.ALWAYS} if always else {}),
    }


def _keyed(key: str) -> Document:
    return {"bindings": {"kafka": {"key": {"type": "string", "description": key}, "bindingVersion": KAFKA_BINDING}}}


def _tombstone() -> Document:
    return {
        "name": TOMBSTONE,
        "summary": "A null value: the pipeline is removed.",
        "payload": {"type": "null"},
        **_keyed(TRAFFIC[Topic.PIPELINES].key),
    }


def _dead_letter() -> Document:
    return {
        "name": DEAD_LETTER,
        "summary": "The original bytes and headers of a message that could not be handled, and the reason.",
        "contentType": "application/octet-stream",
        "headers": {"$ref": "#/components/schemas/DeadLetterHeaders"},
        "payload": {},
        **_keyed(TRAFFIC[Topic.DEAD_LETTERS].key),
    }
