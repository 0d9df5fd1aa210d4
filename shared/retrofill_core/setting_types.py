"""Sources of settings, and the checks of their values."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource, NoDecode, SettingsError

from retrofill.spark.home import LOOPBACK
from retrofill_core.domain.callback import check_url

ENDPOINTS_FILE = "endpoints.json"
MIN_SECRET_BYTES = 24
# Properties of Kafka's clients, and librdkafka's other names for them, that exactly-once processing, the place of a key
# and the time limit of a call depend on.
KAFKA_OWN = frozenset({
    "enable.idempotence", "acks", "request.required.acks", "partitioner",
    "transactional.id", "transaction.timeout.ms",
    "message.timeout.ms", "delivery.timeout.ms", "message.max.bytes",
    "group.id", "group.instance.id", "group.protocol", "group.remote.assignor", "isolation.level", "auto.offset.reset",
    "enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store", "enable.partition.eof",
})  # fmt: skip
PAGERDUTY_KEY = re.compile(r"[A-Za-z0-9]{32}")
_LIST_OF_TEXTS = re.compile(r'\s*\[\s*"')
_HOST = re.compile(r"[A-Za-z0-9_.-]+")
_HTTP = re.compile(r"https?://[^/\s@]+(/[^\s?#]*)?")
# Without query and login, which may hold a secret: errors show the address.
_STORE = re.compile(r"[a-z][a-z0-9+.-]*://(?![^/@]*:[^/@]*@)[^?#\s]+")
_CONNECT = re.compile(r"sc://[^/;\s]+/?(;[^=;\s]+=[^;]*)*;?")


class Role(StrEnum):
    """What a user of the console may do; each may also do what those before it may."""

    READ = "read"
    REQUEST = "request"
    PUBLISH = "publish"
    OPERATE = "operate"

    def allows(self, needed: Role) -> bool:
        ladder = list(Role)
        return ladder.index(self) >= ladder.index(needed)


class FromEnvironment(EnvSettingsSource):
    """Values of ``RETROFILL_<NAME>``.

    Looks only at fields whose variables are set: to see what any field could be takes the library a hundredth of a second,
    in every command and service.
    """

    def _get_resolved_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        if f"{self.env_prefix}{field_name}".lower() not in self.env_vars:
            return None, field_name, False
        return super()._get_resolved_field_value(field, field_name)

    def prepare_field_value(self, field_name: str, field: FieldInfo, value: Any, value_is_complex: bool) -> Any:
        """The value, parsed if it is JSON; ``None`` if the variable is not set."""
        return None if value is None else super().prepare_field_value(field_name, field, value, value_is_complex)


class FromFiles(FromEnvironment):
    """Values from files named by ``RETROFILL_<NAME>_FILE``, without the trailing newline."""

    def _load_env_vars(self) -> Mapping[str, str | None]:
        known = {f"{self.env_prefix}{name}_file".lower(): name for name in self.settings_cls.model_fields}
        named = {known[key.lower()]: path for key, path in os.environ.items() if path and key.lower() in known}
        return {f"{self.env_prefix}{name}".lower(): _content(name, path) for name, path in named.items()}


def _content(name: str, path: str) -> str:
    try:
        return Path(path).read_text("utf-8").rstrip("\r\n")
    except OSError as e:
        raise SettingsError(f"RETROFILL_{name.upper()}_FILE cannot be read: {e.strerror}: {path}") from e


def write_endpoints(home: Path, values: dict[str, Any]) -> None:
    """Write the endpoints file of an embedded stack.

    It contains passwords, so only its owner can read it.
    """
    path = home / ENDPOINTS_FILE
    draft = path.with_suffix(".tmp")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(values, indent=2))
    draft.replace(path)


def _split_patterns(value: object) -> object:
    """One pattern per line, or a JSON list of strings."""
    if not isinstance(value, str):
        return value
    listed = _json_texts(value)
    return [line for line in value.splitlines() if line.strip()] if listed is None else listed


def _json_texts(value: str) -> list[str] | None:
    """The texts, if ``value`` is a JSON list of texts. Raises ``ValueError`` if it begins like one."""
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    if isinstance(parsed, list) and all(isinstance(each, str) for each in parsed):
        return parsed
    if _LIST_OF_TEXTS.match(value):
        # As a regular expression it would mask single characters, and not what it lists.
        raise ValueError("a list of patterns is JSON of texts only, without a comma at its end")
    return None


def _check_patterns(value: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in value:
        try:
            matches_empty = re.compile(pattern).match("") is not None
        except re.error as e:
            raise ValueError(f"{pattern!r} is not a valid regular expression: {e}") from e
        if matches_empty:
            raise ValueError(f"{pattern!r} matches the empty text: it would mask everywhere")
    return value


def _split_names(value: object) -> object:
    """Separated by commas, or a JSON list of strings."""
    if not isinstance(value, str):
        return value
    return (
        json.loads(value)
        if value.lstrip().startswith("[")
        else [each.strip() for each in value.split(",") if each.strip()]
    )


def _check_webhook_secrets(value: dict[str, list[SecretStr]]) -> dict[str, list[SecretStr]]:
    for name, secrets in value.items():
        if not secrets or not all(_is_webhook_secret(secret.get_secret_value()) for secret in secrets):
            raise ValueError(
                f"the secrets under {name!r} must be a list of 'whsec_' followed by base64 of at least 24 bytes; "
                'create one with: echo "whsec_$(openssl rand -base64 32)"'
            )
    return value


def _check_pagerduty_keys(value: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name, key in value.items():
        if not PAGERDUTY_KEY.fullmatch(key.get_secret_value()):
            raise ValueError(
                f"the key under {name!r} must have 32 letters and digits: "
                "copy the integration key of an Events API v2 integration"
            )
    return value


def _check_receivers(value: dict[str, SecretStr | None]) -> dict[str, SecretStr | None]:
    for name, address in value.items():
        try:
            if address is not None:
                check_url(address.get_secret_value())
        except ValueError as e:
            raise ValueError(f"the address under {name!r}: {e}") from None
    return value


def _check_kafka_config(value: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name in value:
        if name in KAFKA_OWN:
            raise ValueError(f"Retrofill sets {name} itself: leave it out")
    return value


def _is_webhook_secret(text: str) -> bool:
    """The Standard Webhooks format: ``whsec_`` and the key in base64, padded or not."""
    code = text.removeprefix("whsec_")
    try:
        return len(base64.b64decode(code + "=" * (-len(code) % 4), validate=True)) >= MIN_SECRET_BYTES
    except ValueError:
        return False


def _check_http_address(value: str) -> str:
    if not _HTTP.fullmatch(value):
        raise ValueError("a web address is like http://host:4040 or https://host/path")
    return value


def _check_connect_address(value: str) -> str:
    # Spark's own error would quote the whole address, including its token.
    if not _CONNECT.fullmatch(value):
        raise ValueError("a Spark Connect address is like sc://host:15002, or sc://host:15002/;token=…;user_id=…")
    return value


def _check_dsn(value: SecretStr) -> SecretStr:
    # Later errors would quote the password, or a part of it, in each line of the log.
    if not _is_dsn(value.get_secret_value()):
        raise ValueError(
            "Postgres cannot use this DSN: percent-encode special characters of the password in postgresql://… "
            "(% is %25, @ is %40, / is %2F), or write password='…' among keywords"
        )
    return value


def _is_dsn(dsn: str) -> bool:
    # Whoever has no DSN, such as the embedded Spark, does not wait for this import.
    import psycopg

    try:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
    except (psycopg.Error, UnicodeError):
        return False
    # What follows an @ or / of the password would be the host or database, and what precedes a / the port.
    ports, hosts = (str(parts.get(name) or "").split(",") for name in ("port", "host"))
    places = (*(host[1:] for host in hosts), str(parts.get("dbname") or ""))
    return all(port.strip().isdecimal() or not port for port in ports) and not any("@" in place for place in places)


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _check_store_address(value: str) -> str:
    if not value.strip():
        raise ValueError("it is empty, which would be the working directory: unset it or name a directory")
    if "://" in value and (not _STORE.fullmatch(value) or value.startswith("memory:")):
        raise ValueError(
            "a code store is a directory, or an address that drivers see too, like s3://bucket/prefix, without query and "
            "login: RETROFILL_CODE_STORE_OPTIONS takes credentials"
        )
    return value


def store_options(value: SecretStr | None) -> dict[str, Any]:
    """The options of a code store. Raises ``ValueError``, which does not quote them, if they are no JSON object."""
    try:
        options = json.loads("{}" if value is None else value.get_secret_value())
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise ValueError('the options are a JSON object, like {"key": "…", "secret": "…"}')
    return options


def _check_store_options(value: SecretStr) -> SecretStr:
    store_options(value)
    return value


def _check_hosts(value: list[str]) -> list[str]:
    for entry in value:
        if not _HOST.fullmatch(entry):
            ip_network(entry)  # raises ValueError with the reason
    return value


def _check_networks(value: list[str]) -> list[str]:
    for entry in value:
        ip_network(entry)  # raises ValueError with the reason
    return value


Patterns = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_patterns), AfterValidator(_check_patterns)]
Names = Annotated[list[str], NoDecode, BeforeValidator(_split_names)]
WebhookSecrets = Annotated[dict[str, list[SecretStr]], AfterValidator(_check_webhook_secrets)]
Receivers = Annotated[dict[str, SecretStr | None], AfterValidator(_check_receivers)]
KafkaConfig = Annotated[dict[str, SecretStr], AfterValidator(_check_kafka_config)]
PagerDutyKeys = Annotated[dict[str, SecretStr], AfterValidator(_check_pagerduty_keys)]
ConnectAddress = Annotated[str, AfterValidator(_check_connect_address)]
HttpAddress = Annotated[str, AfterValidator(_check_http_address)]
StoreAddress = Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_store_address)]
PostgresDsn = Annotated[SecretStr, AfterValidator(_check_dsn)]
StoreOptions = Annotated[SecretStr, AfterValidator(_check_store_options)]
Networks = Annotated[list[str], NoDecode, BeforeValidator(_split_names), AfterValidator(_check_networks)]
HostsAndNetworks = Annotated[list[str], AfterValidator(_check_hosts)]


def check_cluster(master: str, driver_host: str) -> None:
    """Raises ``ValueError`` if drivers cannot run inside that cluster, or could not reach this machine."""
    if master.startswith(("spark://", "local")):
        raise ValueError(
            "RETROFILL_SPARK_SUBMIT_DEPLOY_MODE=cluster: Spark does not run Python drivers inside "
            f"{master}, only on YARN and Kubernetes; use client"
        )
    if driver_host in LOOPBACK:
        raise ValueError(
            "RETROFILL_SPARK_SUBMIT_DEPLOY_MODE=cluster: RETROFILL_DRIVER_HOST must be an address of this machine "
            "that drivers in the cluster can reach"
        )
