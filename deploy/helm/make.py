"""Generate the chart's files from the code: ``python deploy/helm/make.py`` (a test compares them).

``files/kafka.json``: topics, what each service reads, and each user's rights, without the prefix, which is
a value of the chart. ``values.schema.json``: the allowed settings; secrets are only referenced by name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

from confluent_kafka.admin import AclBinding
from pydantic import BaseModel, SecretStr

from retrofill_core.contract.topics import SERVICES
from retrofill_core.settings import Settings
from retrofill_tools.admin.access import acls, table
from retrofill_tools.admin.topics import wanted_topics

CHART = Path(__file__).parent / "retrofill"
KAFKA = CHART / "files" / "kafka.json"
SCHEMA = CHART / "values.schema.json"
# Set by other values of the chart, because more than the services needs them, or not applicable in pods.
OTHERWISE_SET = {
    "home", "cache", "kafka_bootstrap_servers", "kafka_security_protocol", "kafka_sasl_mechanism", "kafka_acls",
    "kafka_ssl_ca", "spark_remote", "spark_submit_master", "topic_prefix", "partitions", "replication_factor",
    "http_host", "http_port", "consumer_session_seconds", "embedded_kafka_auth", "kafka_port", "postgres_port",
    "spark_port", "spark_cores", "spark_driver_memory", "crash_point", "kafka_username", "kafka_users", "kafka_password",
    "kafka_passwords", "postgres_dsn", "postgres_service_dsns", "console_host", "console_port", "console_tokens",
    "console_user_header", "console_proxies", "console_roles",
}  # fmt: skip
CONSTRAINTS = ("type", "enum", "anyOf", "items", "additionalProperties", "minimum", "maximum", "exclusiveMinimum")
# Depends on a value of the chart.
REPLICAS = "min.insync.replicas"


def is_secret(name: str) -> bool:
    """Whether the setting's value, or a part of it, is a secret."""
    return _has_secret(Settings.model_fields[name].annotation)


def _has_secret(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return any(_has_secret(field.annotation) for field in kind.model_fields.values())
    return kind is SecretStr or any(_has_secret(part) for part in get_args(kind))


def plain_settings() -> dict[str, Any]:
    """Schemas of the values under ``settings``, by name without ``RETROFILL_``."""
    described = Settings.model_json_schema()["properties"]
    return {name.upper(): _bare(described[name]) for name in _settable(secret=False)}


def secret_settings() -> dict[str, Any]:
    """Schemas of the values under ``secretSettings``: by name, each a Secret and one of its keys."""
    return {name.upper(): {"$ref": "#/$defs/secretSetting"} for name in _settable(secret=True)}


def _settable(*, secret: bool) -> list[str]:
    return sorted(name for name in Settings.model_fields if is_secret(name) is secret and name not in OTHERWISE_SET)


def _bare(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without titles, descriptions and defaults."""
    return {key: value for key, value in schema.items() if key in CONSTRAINTS}


def kafka() -> dict[str, Any]:
    """Topics, consumer groups and rights from the code, with an empty prefix."""
    bare = Settings.model_construct(topic_prefix="", partitions=0, replication_factor=1)
    return {
        "topics": [
            {
                "name": topic.topic,
                # None: the chart's value.
                "partitions": topic.num_partitions or None,
                "config": {name: value for name, value in topic.config.items() if name != REPLICAS},
            }
            for topic in wanted_topics(bare)
        ],
        "services": {
            service.name: {"group": service.group(""), "reads": [str(topic) for topic in service.reads]}
            for service in SERVICES.values()
        },
        "users": {who: rules(acls(access, who)) for who, access in table(bare).items()},
    }


def rules(bindings: set[AclBinding]) -> list[dict[str, Any]]:
    """ACLs as Strimzi rules, one per resource, in a fixed order."""
    operations: dict[tuple[str, str, str], set[str]] = {}
    for each in bindings:
        kind = {"TRANSACTIONAL_ID": "transactionalId"}.get(each.restype.name, each.restype.name.lower())
        pattern = {"PREFIXED": "prefix"}.get(each.resource_pattern_type.name, each.resource_pattern_type.name.lower())
        operations.setdefault((kind, each.name, pattern), set()).add(each.operation.name.capitalize())
    return [
        {"resource": {"type": kind, "name": name, "patternType": pattern}, "operations": sorted(allowed)}
        for (kind, name, pattern), allowed in sorted(operations.items())
    ]


def files() -> dict[Path, str]:
    """Expected content by path."""
    schema = json.loads(SCHEMA.read_text())
    schema["$defs"]["settings"]["properties"] = plain_settings()
    schema["$defs"]["secretSettings"]["properties"] = secret_settings()
    return {path: json.dumps(content, indent=2) + "\n" for path, content in ((KAFKA, kafka()), (SCHEMA, schema))}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
