"""The reference page of topics and messages, rendered from the JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from retrofill_core.contract import topics_of
from retrofill_core.contract.base import REGISTRY
from retrofill_core.contract.topics import COMPACTED, Topic
from retrofill_core.contract.topics_of import TRAFFIC, Document
from retrofill_core.settings import Settings
from tools.asyncapi import readers_of, summary_of, writers_of
from tools.examples import example_of

HEAD = """# Messages

<!-- Generated from the models by `python -m tools.schemas --docs docs/messages.md schemas`. Do not edit. -->

All topics and the messages on them, also available as JSON Schemas (`schemas/`) and
[AsyncAPI](../schemas/asyncapi.yaml). Topic names have the default prefix (`RETROFILL_TOPIC_PREFIX`).

- A value is UTF-8 JSON, one object. The header `ce_type` names the message type, or else the field `type`.
- In messages that users write (requests, commands, definitions, replays) an unknown field is refused,
  with the nearest known name. In all other messages unknown fields are ignored: do the same when you
  read them.
- Later releases may add fields, message types, and values in events. Existing ones stay, and messages
  you may send today remain valid. A breaking change has another `version`.
- A message with a newer version or an unknown type becomes a [dead letter](bad-input.md) with that
  reason.
- Timestamps have a UTC offset (RFC 3339). Every message may have `version` (default 1) and
  `in_reply_to`, the `ce_id` of the message it replies to; the tables omit these and `type`.
- Messages with the same key are on the same partition, chosen as in Kafka's Java clients (murmur2).
  All topics have the same number of partitions (`RETROFILL_PARTITIONS`).
- Read events with `isolation.level=read_committed`: each appears once, and in order per key.
"""
# Fields of every message, described once in the head.
COMMON = ("type", "version", "in_reply_to")

Schemas = Mapping[str, Document]


def page(schemas: Schemas) -> str:
    """The page as Markdown. ``schemas`` has all message types, by name."""
    parts = [HEAD, _topics(), _headers()]
    for topic in Topic:
        parts.append(_topic(topic))
        parts += [_message(model.__name__, schemas[model.__name__]) for model in TRAFFIC[topic].types]
    parts += ["## Types inside messages\n", *(_type(name, schema) for name, schema in inner_types(schemas))]
    return "\n".join(parts)


def inner_types(schemas: Schemas) -> list[tuple[str, Document]]:
    """The types used inside messages, sorted by name."""
    found = {name: inner for schema in schemas.values() for name, inner in schema.get("$defs", {}).items()}
    return sorted(found.items())


def address(topic: Topic) -> str:
    """A topic's name with the default prefix."""
    return f"{Settings.model_fields['topic_prefix'].default}{topic}"


def _topics() -> str:
    rows = [
        [
            f"[`{topic}`](#{address(topic).replace('.', '')})",
            traffic.key,
            ", ".join(writers_of(traffic)),
            ", ".join(readers_of(topic)),
        ]
        for topic, traffic in TRAFFIC.items()
    ]
    return "## Topics\n\n" + _table(["topic", "key", "written by", "read by"], rows)


def _headers() -> str:
    own = [[f"`{name}`", _cell(about["description"])] for name, about in topics_of.CLOUD_EVENT["properties"].items()]
    dead = [[f"`{name}`", _cell(about["description"])] for name, about in topics_of.DEAD_LETTER["properties"].items()]
    return (
        "## Headers\n\nCloudEvents in binary mode. Messages of services have all but `traceparent`; yours need none.\n\n"
        + _table(["header", "description"], own)
        + "\nA dead letter has the original headers and these:\n\n"
        + _table(["header", "description"], dead)
    )


def _topic(topic: Topic) -> str:
    compacted = " Compacted." if topic in COMPACTED else ""
    traffic = TRAFFIC[topic]
    written, read = ", ".join(writers_of(traffic)), ", ".join(readers_of(topic))
    return (
        f"## {address(topic)}\n\n{traffic.about}{compacted}\n\n"
        f"Key: {traffic.key}. Written by {written}. Read by {read}.\n"
    )


def _message(name: str, schema: Document) -> str:
    fields = [row for row in _fields(schema) if row[0].strip("`") not in COMMON]
    more = "\n".join(_paragraphs(schema)[1:])
    return (
        f"### {name}\n\n{summary_of(REGISTRY[name])}\n\n"
        + (f"{more}\n\n" if more else "")
        + (_field_table(fields) if fields else "No further fields.\n")
        + f"\n```json\n{json.dumps(example_of(name), indent=2, ensure_ascii=False)}\n```\n"
    )


def _type(name: str, schema: Document) -> str:
    head = f"### {name}\n\n" + "\n\n".join(_paragraphs(schema)) + "\n"
    if "enum" in schema:
        return head + "\nOne of " + ", ".join(f"`{value}`" for value in schema["enum"]) + ".\n"
    fields = _fields(schema)
    return f"{head}\n{_field_table(fields)}" if fields else head


def _paragraphs(schema: Document) -> list[str]:
    return [" ".join(each.split()).replace("``", "`") for each in schema["description"].split("\n\n")]


def _field_table(rows: list[list[str]]) -> str:
    return _table(["field", "type", "required", "description"], rows)


def _fields(schema: Document) -> list[list[str]]:
    required = schema.get("required", [])
    return [
        [f"`{name}`", _type_of(field), "yes" if name in required else _default(field), _cell(field["description"])]
        for name, field in schema.get("properties", {}).items()
    ]


def _default(field: Document) -> str:
    default = field.get("default")
    return "" if default in (None, [], {}) else f"default `{json.dumps(default)}`"


def _type_of(schema: Document) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for chosen in ("anyOf", "oneOf"):
        if chosen in schema:
            return " or ".join(_type_of(each) for each in schema[chosen] if each.get("type") != "null")
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    return " ".join([_plain(schema), *_limits(schema)])


def _plain(schema: Document) -> str:
    match schema:
        case {"type": "array"}:
            return f"list of {_type_of(schema['items'])}"
        case {"type": "object", "additionalProperties": dict() as values}:
            return f"object of {_type_of(values)}"
        case {"format": str() as kind}:
            return kind
        case _:
            return str(schema.get("type", "any JSON"))


def _limits(schema: Document) -> Iterator[str]:
    words = {"minimum": "≥ {:,}", "maximum": "≤ {:,}", "minLength": "≥ {} characters", "maxLength": "≤ {:,} characters"}
    for keyword, text in words.items():
        if keyword in schema:
            yield text.format(schema[keyword])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
