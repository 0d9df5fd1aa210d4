"""Settings: every one is an environment variable ``RETROFILL_<NAME>``; nothing is read at import.

Endpoints that are not set are taken from the endpoints file that ``retrofill up`` writes into ``RETROFILL_HOME``, so that
every command works in the folder of an embedded stack without any setting at all. ``RETROFILL_<NAME>_FILE`` names a file that
holds the value: that is how secrets come in without being in an environment.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    JsonConfigSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

ENDPOINTS_FILE = "endpoints.json"
MIN_SECRET_BYTES = 24
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HOST = re.compile(r"[A-Za-z0-9_.-]+")
_CONNECT = re.compile(r"sc://[^/;\s]+/?(;[^=;\s]+=[^;]*)*;?")


class Settings(BaseSettings):
    """All settings of all processes. Durations are seconds, sizes are bytes."""

    # What is wrong may be a secret: errors do not quote it.
    model_config = SettingsConfigDict(env_prefix="RETROFILL_", extra="ignore", frozen=True, hide_input_in_errors=True)

    home: Path = Field(Path(".retrofill"), description="Folder of one embedded stack: data, logs, endpoints")
    cache: Path | None = Field(
        None, description="Folder for what is downloaded once (the Kafka broker); default: the user's cache folder"
    )

    # where things are
    kafka_bootstrap_servers: str | None = Field(None, description="host:port of Kafka brokers, comma separated")
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="How clients talk to Kafka"
    )
    kafka_sasl_mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = Field(
        "SCRAM-SHA-512", description="How they log in, where the protocol has SASL"
    )
    kafka_username: str | None = Field(
        None, description="Name to log in with; default: the topic prefix and who it is, as in retrofill.run-starter"
    )
    kafka_password: SecretStr | None = Field(None, description="Password to log in with")
    kafka_passwords: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Password by name of service, driver, operator, requester, as JSON; who is not named uses kafka_password",
    )
    kafka_users: dict[str, str] = Field(
        default_factory=dict,
        description="Kafka's name for each of these, as JSON, where it is not the default of kafka_username",
    )
    kafka_acls: bool = Field(False, description="Whether init also makes Kafka users (SCRAM) and their ACLs")
    kafka_ssl_ca: Path | None = Field(None, description="PEM file of the authorities that Kafka's certificate is from")
    kafka_ssl_certificate: Path | None = Field(None, description="PEM file of the client's certificate, for mutual TLS")
    kafka_ssl_key: Path | None = Field(None, description="PEM file of its key")
    kafka_ssl_key_password: SecretStr | None = Field(None, description="Password of that key")
    kafka_config: dict[str, SecretStr] = Field(
        default_factory=dict, description="More librdkafka properties for every client, as JSON; they win"
    )
    kafka_driver_ssl_certificate: Path | None = Field(
        None, description="PEM file of the drivers' own certificate, for mutual TLS: they never get the run-starter's"
    )
    kafka_driver_ssl_key: Path | None = Field(None, description="PEM file of its key")
    kafka_driver_ssl_key_password: SecretStr | None = Field(None, description="Password of that key")
    kafka_driver_config: dict[str, SecretStr] = Field(
        default_factory=dict, description="kafka_config of drivers, as JSON; needed where that has a login in it"
    )
    postgres_dsn: SecretStr | None = Field(None, description="DSN of the database's owner: migrations and the CLI")
    postgres_service_dsns: dict[str, SecretStr] = Field(
        default_factory=dict, description="DSN by service name, as JSON; a service not named uses postgres_dsn"
    )
    spark_remote: str | None = Field(None, repr=False, description="Spark Connect address, sc://host:port")
    spark_submit_master: str = Field("local[1]", description="--master of the spark-submit executor and submit tasks")
    spark_submit_deploy_mode: Literal["client", "cluster"] = Field(
        "client", description="Where the spark-submit executor's drivers run: beside the run-starter, or in the cluster"
    )
    spark_submit_conf: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Spark's settings for every spark-submit, as JSON; a pipeline's own win",
    )
    spark_conf_allow: list[str] = Field(
        ["default"],
        description="Spark settings that a pipeline's definition may have, as JSON: names, patterns with *, and default: those "
        "that load no code",
    )
    script_allow: list[str] = Field(
        default_factory=list,
        description="Scripts that submit tasks may run though they were not shipped with the pipeline's code, as JSON: paths and "
        "addresses, or patterns with *",
    )
    driver_host: str = Field(
        "127.0.0.1", description="Name or address of the run-starter's host for drivers that run in the cluster"
    )

    # the user's code
    code_store: Path | None = Field(
        None,
        description="Folder, shared by whoever applies pipelines and all drivers, of archives of their code; where none is "
        "set, code is imported from where it lies. The embedded stack has one",
    )
    code_cache: Path | None = Field(
        None, description="Folder in which drivers unpack these archives; default: code-cache in RETROFILL_HOME"
    )
    code_max_bytes: int = Field(10_000_000, ge=1, description="Largest code of a pipeline, all files together")

    # the contract
    topic_prefix: str = Field("retrofill.", description="Prefix of every topic")
    partitions: int = Field(12, ge=1, le=1000, description="Partitions of every topic (fixed once at init)")
    replication_factor: int = Field(3, ge=1, description="Replication factor of topics made by init")
    max_message_bytes: int = Field(900_000, description="Largest value of a message that a service publishes")

    # limits and times
    max_plan_runs: int = Field(500_000, ge=1, description="Largest number of runs of one backfill")
    max_conf_bytes: int = Field(100_000, ge=2, description="Largest conf of a backfill request, as JSON")
    batch_messages: int = Field(500, ge=1, description="Messages of one shard handled in one transaction")
    driver_slots: int = Field(2, ge=1, description="Drivers that one run-starter runs at once (its pool's limit)")
    driver_max_runs: int = Field(100, ge=1, description="Runs after which a warm driver process is replaced")
    lease_seconds: float = Field(15.0, gt=0, description="A run's lease: how long a silent driver counts as alive")
    max_lost_attempts: int = Field(5, ge=1, description="Attempts of a run that may be lost before it fails")
    callback_slots: int = Field(8, ge=1, description="Callbacks that one callback-runner runs at once")
    callback_timeout_seconds: float = Field(30.0, gt=0, description="Time limit of one call of a callback")
    callback_max_attempts: int = Field(5, ge=1, description="Calls of one callback before it counts as failed")
    callbacks: dict[str, str] = Field(
        default_factory=dict, description="Allow-list of callback functions, as JSON: name = module:function"
    )
    webhook_secrets: dict[str, list[SecretStr]] = Field(
        default_factory=dict,
        description="Signing secrets of webhooks by name, as JSON: name = [whsec_…, …], the newest first",
    )
    callback_topics: list[str] = Field(
        default_factory=list,
        description="Topics that callbacks may write, as JSON: init lets the callback-runner do so",
    )
    webhook_timeout_seconds: float = Field(15.0, gt=0, description="Time limit of one call of a webhook")
    webhook_allow: list[str] = Field(
        default_factory=list,
        description="Host names and networks (CIDR) inside which webhooks may be called though they are private, as JSON",
    )
    consumer_session_seconds: float = Field(
        6.0, gt=0, description="Embedded broker only: after how long the partitions of a dead service move"
    )

    # the embedded stack
    embedded_kafka_auth: bool = Field(False, description="Whether the embedded Kafka asks for passwords and has ACLs")
    kafka_port: int = Field(19092, description="Preferred port of the embedded Kafka; the next free one otherwise")
    postgres_port: int = Field(15432, description="Preferred port of the embedded Postgres")
    spark_port: int = Field(15002, description="Preferred port of the embedded Spark Connect server")
    java_home: Path | None = Field(None, description="JDK 17 or 21 to use instead of the one found")
    spark_master: str | None = Field(
        None, description="Master of the embedded Spark Connect server, as spark://host:7077; default: local mode"
    )
    spark_cores: int | None = Field(None, description="Cores of the embedded Spark (local[n]); default: all")
    spark_conf: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Spark's settings for the embedded Spark Connect server, as JSON; they win",
    )
    spark_driver_memory: str = Field("1g", description="Heap of the embedded Spark Connect server")

    openlineage_topic: str | None = Field(None, description="Kafka topic for OpenLineage run events of the drivers")
    openlineage_namespace: str = Field("retrofill", description="Namespace of the jobs in them")
    http_host: str = Field("127.0.0.1", description="Address that a service shows /metrics, /healthz and /readyz on")
    http_port: int = Field(0, ge=0, le=65_535, description="Its port; 0: any free one, named in the ready file")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Least severe log level")
    redact: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Regular expressions, one a line or as JSON list, of what drivers mask in errors and in their log, in "
        "addition to passwords and tokens in URLs, name=value pairs and JSON; of one with groups, what these match",
    )
    crash_point: str | None = Field(
        None,
        description="Test aid: the process kills itself at this named point (NAME@3: the third time), or stops (NAME:stop)",
    )

    @field_validator("redact", mode="before")
    @classmethod
    def _patterns(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return (
            json.loads(value)
            if value.lstrip().startswith('["')
            else [line for line in value.splitlines() if line.strip()]
        )

    @field_validator("redact")
    @classmethod
    def _compile(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            try:
                matches_nothing = re.compile(pattern).match("") is not None
            except re.error as e:
                raise ValueError(f"{pattern!r} is no regular expression: {e}") from e
            if matches_nothing:
                raise ValueError(f"{pattern!r} matches the empty text: it would mask everywhere")
        return value

    @field_validator("webhook_secrets")
    @classmethod
    def _can_sign(cls, value: dict[str, list[SecretStr]]) -> dict[str, list[SecretStr]]:
        for name, secrets in value.items():
            if not secrets or not all(_is_webhook_secret(secret.get_secret_value()) for secret in secrets):
                raise ValueError(
                    f"the secrets under {name!r} must be a list of 'whsec_' and base64 of at least 24 bytes; "
                    'make one with: echo "whsec_$(openssl rand -base64 32)"'
                )
        return value

    @field_validator("spark_remote")
    @classmethod
    def _is_a_connect_address(cls, value: str | None) -> str | None:
        # Spark's own error quotes the whole address, with its token.
        if value is not None and not _CONNECT.fullmatch(value):
            raise ValueError("a Spark Connect address is like sc://host:15002, or sc://host:15002/;token=…;user_id=…")
        return value

    @field_validator("webhook_allow")
    @classmethod
    def _hosts_or_networks(cls, value: list[str]) -> list[str]:
        for entry in value:
            if not _HOST.fullmatch(entry):
                ip_network(entry)  # raises ValueError, and says why
        return value

    @model_validator(mode="after")
    def _drivers_can_run_there(self) -> Self:
        if self.spark_submit_deploy_mode == "cluster":
            if self.spark_submit_master.startswith(("spark://", "local")):
                raise ValueError(
                    f"RETROFILL_SPARK_SUBMIT_DEPLOY_MODE=cluster: Spark runs no Python driver inside {self.spark_submit_master}, "
                    "only on YARN and Kubernetes; use client"
                )
            if self.driver_host in LOOPBACK:
                raise ValueError(
                    "RETROFILL_SPARK_SUBMIT_DEPLOY_MODE=cluster: RETROFILL_DRIVER_HOST must be an address of this machine "
                    "that drivers in the cluster reach"
                )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is the library's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - likewise
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments first, then the environment, files that it names, and the endpoints file of the stack in ``home``."""
        file_settings = FromFiles(settings_cls)
        known: dict[str, Any] = {**file_settings(), **env_settings(), **init_settings()}
        home = Path(known.get("home", cls.model_fields["home"].default))
        return (
            init_settings,
            env_settings,
            file_settings,
            JsonConfigSettingsSource(settings_cls, json_file=home / ENDPOINTS_FILE),
        )

    def dsn_of(self, service: str) -> str:
        """The DSN that ``service`` connects with. Raises ``NotConfigured`` where none is known."""
        secret = self.postgres_service_dsns.get(service) or self.postgres_dsn
        if secret is None:
            raise NotConfigured("RETROFILL_POSTGRES_DSN")
        return secret.get_secret_value()

    def kafka_user(self, who: str) -> str:
        """Kafka's name for a service, or for another of those in ``retrofill.admin.access``."""
        return self.kafka_users.get(who, f"{self.topic_prefix}{who}")

    def acting_as(self, who: str) -> Settings:
        """The settings with the Kafka login of ``who``, where there is one of its own."""
        own = self.kafka_passwords.get(who)
        if own is not None:
            return self.model_copy(update={"kafka_username": self.kafka_user(who), "kafka_password": own})
        return self if self.kafka_username else self.model_copy(update={"kafka_username": self.kafka_user(who)})

    def bootstrap_servers(self) -> str:
        """Kafka's address. Raises ``NotConfigured`` where none is known."""
        if self.kafka_bootstrap_servers is None:
            raise NotConfigured("RETROFILL_KAFKA_BOOTSTRAP_SERVERS")
        return self.kafka_bootstrap_servers


class FromFiles(EnvSettingsSource):
    """Values from the files that variables named ``RETROFILL_<NAME>_FILE`` name, without the line's end."""

    def _load_env_vars(self) -> Mapping[str, str | None]:
        ours = {f"{self.env_prefix}{name}_file".lower(): name for name in self.settings_cls.model_fields}
        named = {ours[key.lower()]: path for key, path in os.environ.items() if path and key.lower() in ours}
        return {f"{self.env_prefix}{name}".lower(): _content(name, path) for name, path in named.items()}


def _content(name: str, path: str) -> str:
    try:
        return Path(path).read_text("utf-8").rstrip("\r\n")
    except OSError as e:
        raise SettingsError(f"RETROFILL_{name.upper()}_FILE cannot be read: {e.strerror}: {path}") from e


def _is_webhook_secret(text: str) -> bool:
    """Whether it is one as Standard Webhooks says: ``whsec_`` and base64, padded or not, of a key that is long enough."""
    code = text.removeprefix("whsec_")
    try:
        return len(base64.b64decode(code + "=" * (-len(code) % 4), validate=True)) >= MIN_SECRET_BYTES
    except ValueError:
        return False


class NotConfigured(Exception):
    """An endpoint is neither set nor known from a running embedded stack; or, with ``why``, something else is missing."""

    def __init__(self, variable: str, why: str | None = None) -> None:
        super().__init__(
            why or f"no stack is running in this folder (start one with 'retrofill up') and {variable} is not set"
        )


def write_endpoints(home: Path, values: dict[str, Any]) -> None:
    """Write the endpoints file of an embedded stack, readable by its owner only (it has passwords)."""
    path = home / ENDPOINTS_FILE
    draft = path.with_suffix(".tmp")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(values, indent=2))
    draft.replace(path)
