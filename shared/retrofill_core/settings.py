"""Settings: each one is an environment variable ``RETROFILL_<NAME>``. Nothing is read at import.

Endpoints that are not set come from the endpoints file that ``retrofill up`` writes into
``RETROFILL_HOME``, so every command works in the directory of an embedded stack without
configuration. ``RETROFILL_<NAME>_FILE`` names a file that contains the value, to keep secrets out
of the environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    JsonConfigSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from retrofill.errors import NotConfigured as NotConfigured
from retrofill_core.pools import Pools, check_pools
from retrofill_core.setting_types import (
    ENDPOINTS_FILE,
    ConnectAddress,
    FromEnvironment,
    FromFiles,
    HostsAndNetworks,
    HttpAddress,
    KafkaConfig,
    Names,
    Networks,
    PagerDutyKeys,
    Patterns,
    PostgresDsn,
    Receivers,
    Role,
    StoreAddress,
    StoreOptions,
    WebhookSecrets,
)


class Settings(BaseSettings):
    """All settings of all processes. Durations are in seconds, sizes in bytes."""

    # An invalid value may be a secret, so errors do not quote it.
    model_config = SettingsConfigDict(env_prefix="RETROFILL_", extra="ignore", frozen=True, hide_input_in_errors=True)

    home: Path = Field(Path(".retrofill"), description="Directory of one embedded stack: data, logs, endpoints")
    cache: Path | None = Field(
        None, description="Directory for downloads (the Kafka broker); default: the user's cache directory"
    )

    # endpoints
    kafka_bootstrap_servers: str | None = Field(None, description="host:port of Kafka brokers, comma separated")
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="Security protocol of Kafka clients"
    )
    kafka_sasl_mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = Field(
        "SCRAM-SHA-512", description="SASL mechanism, if the protocol uses SASL"
    )
    kafka_username: str | None = Field(
        None,
        description="Kafka user; default: the topic prefix plus the client's name, for example retrofill.run-starter",
    )
    kafka_password: SecretStr | None = Field(None, description="Password of that user")
    kafka_passwords: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Passwords by client (a service, console, operator, requester), as JSON; others use kafka_password",
    )
    kafka_users: dict[str, str] = Field(
        default_factory=dict, description="Kafka users by client, as JSON, where the default does not fit"
    )
    kafka_acls: bool = Field(False, description="Whether init also creates Kafka users (SCRAM) and their ACLs")
    kafka_ssl_ca: Path | None = Field(None, description="PEM file of the CAs that signed Kafka's certificate")
    kafka_ssl_certificate: Path | None = Field(None, description="PEM file of the client's certificate, for mutual TLS")
    kafka_ssl_key: Path | None = Field(None, description="PEM file of its key")
    kafka_ssl_key_password: SecretStr | None = Field(None, description="Password of that key")
    kafka_config: KafkaConfig = Field(
        default_factory=dict,
        description="Additional librdkafka properties for all clients, as JSON; take precedence. Those that the guarantees "
        "depend on, such as acks and group.id, are refused",
    )
    postgres_dsn: PostgresDsn | None = Field(None, description="DSN of the database's owner: migrations and the CLI")
    postgres_service_dsns: dict[str, PostgresDsn] = Field(
        default_factory=dict, description="DSNs by service, as JSON; others use postgres_dsn"
    )
    spark_remote: ConnectAddress | None = Field(None, repr=False, description="Spark Connect address, sc://host:port")
    spark_ui: HttpAddress | None = Field(
        None,
        description="Address of the Spark Connect server's web UI, http://host:port, which reports what attempts cost",
    )
    spark_home: Path | None = Field(
        None, description="Spark installation whose spark-submit is used; default: SPARK_HOME, or the one in pyspark"
    )
    spark_submit_master: str | None = Field(
        None,
        description="--master of the spark-submit executor and submit tasks; default: spark.master of "
        "spark-defaults.conf, or local[1]",
    )
    spark_submit_deploy_mode: Literal["client", "cluster"] = Field(
        "client", description="Where the spark-submit executor's drivers run: beside the run-starter, or in the cluster"
    )
    spark_submit_conf: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Spark settings for every spark-submit, as JSON; a pipeline's own take precedence",
    )
    spark_conf_allow: list[str] = Field(
        ["default"],
        description="Spark settings that a pipeline may define, as JSON: names, patterns with *, or default for those "
        "that load no code",
    )
    script_allow: list[str] = Field(
        default_factory=list,
        description="Scripts that submit tasks may run although they were not shipped with the pipeline's code, as JSON: "
        "paths, addresses or patterns with *",
    )
    spark_jars: list[str] = Field(
        default_factory=list,
        description="Jars for all sessions, as JSON: local paths, which Connect sessions get as artifacts and spark-submit "
        "as spark.jars",
    )
    driver_host: str = Field(
        "127.0.0.1", description="Name or address at which drivers in the cluster reach the run-starter's host"
    )

    # pools
    pools: Pools = Field(
        default_factory=dict,
        repr=False,
        description="Pools of drivers ([pools](pools.md)), as TOML or JSON: sections by name. Usually a file, "
        "RETROFILL_POOLS_FILE",
    )
    serves: Names = Field(
        default_factory=list,
        description="The pools whose drivers this run-starter starts, as JSON or separated by commas; default: all",
    )

    # the user's code
    code_store: StoreAddress | None = Field(
        None,
        description="Directory or fsspec address (s3://, gs://, abfs://, hdfs://…) for archives of pipeline code, shared by "
        "the users who apply pipelines and all run-starters, which give drivers the code; if not set, drivers import code "
        "from its original path. The embedded stack has one",
    )
    code_store_options: StoreOptions | None = Field(
        None,
        description="Arguments of the address's fsspec file system, such as credentials and endpoints, as JSON; default: "
        "its library's own configuration",
    )
    code_cache: Path | None = Field(
        None, description="Directory where run-starters unpack these archives; default: code-cache in RETROFILL_HOME"
    )
    code_max_bytes: int = Field(10_000_000, ge=1, description="Maximum total size of a pipeline's code")

    # the contract
    topic_prefix: str = Field("retrofill.", description="Prefix of every topic")
    partitions: int = Field(12, ge=1, le=1000, description="Partitions of every topic (fixed once at init)")
    replication_factor: int = Field(3, ge=1, description="Replication factor of topics that init creates")
    # Room for what has to be one message: the failures of a window, all that a run published.
    max_message_bytes: int = Field(
        900_000, ge=500_000, description="Maximum size of a message value that a service publishes"
    )

    # limits and times
    max_plan_runs: int = Field(500_000, ge=1, description="Maximum number of runs per backfill")
    max_conf_bytes: int = Field(100_000, ge=2, description="Maximum size of a request's conf, as JSON")
    batch_messages: int = Field(500, ge=1, description="Maximum messages of one shard per transaction")
    driver_slots: int = Field(2, ge=1, description="Seats of one run-starter: its maximum number of concurrent drivers")
    driver_start_seconds: float = Field(
        300.0, gt=0, description="How long an attempt waits for its driver process before it is given to another one"
    )
    drain_seconds: float = Field(
        10.0, ge=0, description="How long a run-starter that stops lets its drivers finish the runs that they began"
    )
    lease_seconds: float = Field(
        60.0,
        gt=0,
        description="A run's lease: how long a silent driver counts as alive, and how long Kafka and Postgres may both be away",
    )
    max_lost_attempts: int = Field(
        5, ge=1, description="Lost drivers of a run that is retried alone, after its first loss, after which it fails"
    )
    callback_slots: int = Field(8, ge=1, description="Maximum concurrent callbacks of one callback-runner")
    callback_timeout_seconds: float = Field(30.0, gt=0, description="Timeout of one callback call")
    callback_max_attempts: int = Field(5, ge=1, description="Failed calls after which a callback fails")
    callback_patience_seconds: float = Field(
        14_400.0,
        gt=0,
        description="How long callbacks wait for a webhook or Kafka that is down",
    )
    callbacks: dict[str, str] = Field(
        default_factory=dict, description="Allow-list of callback functions, as JSON: name = module:function"
    )
    receivers: Receivers = Field(
        default_factory=dict,
        description="Addresses of webhooks by name, as JSON. Usually a file, RETROFILL_RECEIVERS_FILE. Where pipelines are only "
        "applied, names are enough: name = null",
    )
    webhook_secrets: WebhookSecrets = Field(
        default_factory=dict,
        description="Signing secrets of webhooks by name, as JSON: name = [whsec_…, …], newest first",
    )
    pagerduty_keys: PagerDutyKeys = Field(
        default_factory=dict,
        description="Integration keys (routing keys) of PagerDuty by name, as JSON, for webhooks with that body",
    )
    callback_topics: list[str] = Field(
        default_factory=list,
        description="Topics that callbacks may write, as JSON; init grants the callback-runner access",
    )
    webhook_timeout_seconds: float = Field(15.0, gt=0, description="Timeout of one webhook call")
    webhook_allow: HostsAndNetworks = Field(
        default_factory=list,
        description="Private host names and networks (CIDR) that webhooks may call, as JSON",
    )
    consumer_session_seconds: float = Field(
        6.0, gt=0, description="Embedded broker only: time until a dead service's partitions are reassigned"
    )

    # the embedded stack
    embedded_kafka_auth: bool = Field(False, description="Whether the embedded Kafka requires passwords and has ACLs")
    # Its controller prefers the next one.
    kafka_port: int = Field(
        19092, ge=1, le=65_534, description="Preferred port of the embedded Kafka; the next free one otherwise"
    )
    postgres_port: int = Field(15432, ge=1, le=65_535, description="Preferred port of the embedded Postgres")
    spark_port: int = Field(15002, ge=1, le=65_535, description="Preferred port of the embedded Spark Connect server")
    java_home: Path | None = Field(None, description="JDK 17 or 21 to use instead of the detected one")
    spark_master: str | None = Field(
        None, description="Master of the embedded Spark Connect server, like spark://host:7077; default: local mode"
    )
    spark_cores: int | None = Field(None, description="Cores of the embedded Spark (local[n]); default: all")
    spark_conf: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Spark settings for the embedded Spark Connect server, as JSON; take precedence",
    )
    spark_tables: list[Literal["iceberg", "delta"]] = Field(
        default_factory=list,
        description="Table formats for the embedded Spark, its Connect server and local scripts, as JSON; their jars are "
        "downloaded once",
    )
    spark_driver_memory: str = Field("1g", description="Heap of the embedded Spark Connect server")

    log_store: Path | None = Field(
        None,
        description="Directory for the logs of attempts, which hosts may share; default: logs/attempts in RETROFILL_HOME",
    )
    log_file_bytes: int = Field(
        10_000_000, ge=1, description="Size of an attempt's log before it continues in a new file"
    )
    log_keep_seconds: float = Field(
        604_800.0, gt=0, description="How long the log of an attempt is kept after its last line"
    )
    log_total_bytes: int = Field(
        10_000_000_000,
        ge=1,
        description="Total size of all logs in that directory, beyond which the oldest are removed",
    )
    keep_replaced_days: int = Field(
        7,
        ge=0,
        le=3650,
        description="How long output that a publication replaces is kept for 'retrofill backfill undo', directories and "
        "Iceberg snapshots (a branch); 0: not at all. Delta tables keep it by their own settings",
    )
    staged_tables: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="Namespace (schema) where output for tables is staged, in the catalog of each table, such as 'staging'; it "
        "must exist. Default: the table's own",
    )
    openlineage_topic: str | None = Field(
        None, description="Kafka topic for OpenLineage run events, which run-starters publish"
    )
    openlineage_namespace: str = Field("retrofill", description="Namespace of the jobs in these events")
    http_host: str = Field(
        "127.0.0.1", description="Listen address for a service's metrics, probes and logs of attempts"
    )
    http_address: str | None = Field(
        None,
        description="Name or address at which others reach it; default: http_host, or this machine's if that is 0.0.0.0",
    )
    http_port: int = Field(0, ge=0, le=65_535, description="Its port; 0: any free port, written to the ready file")

    # the console
    console_host: str = Field("127.0.0.1", description="Listen address of the console; others need a login")
    console_port: int = Field(
        18470,
        ge=0,
        le=65_535,
        description="Its port; in the embedded stack the preferred one, the next free one otherwise",
    )
    console_url: str | None = Field(
        None,
        description="Address at which people reach the console, for 'retrofill open'; the embedded stack knows its own",
    )
    console_tokens: Path | None = Field(
        None,
        description="File with the roles and hashed tokens of the console's users (retrofill tokens create); read again when "
        "it changes",
    )
    console_user_header: str | None = Field(
        None,
        description="Header in which a proxy in front of the console names the logged-in user, like X-Forwarded-User",
    )
    console_proxies: Networks = Field(
        default_factory=list,
        description="Addresses or networks (CIDR) of proxies whose header counts, as JSON or separated by commas",
    )
    console_roles: dict[str, Role] = Field(
        default_factory=dict,
        description="Roles (read, request, publish, operate) of the users that a proxy names, as JSON; * is for all others, "
        "who may read by default",
    )

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Minimum log level")
    redact: Patterns = Field(
        (),
        description="Regular expressions, one per line or a JSON list, that drivers mask in errors and logs, in addition "
        "to passwords and tokens in URLs, name=value pairs and JSON; if one has groups, only the groups are masked",
    )
    crash_point: str | None = Field(
        None,
        description="For tests: the process kills itself at this named point (NAME@3: the third time), or stops (NAME:stop)",
    )

    @model_validator(mode="after")
    def _pools_can_be_served(self) -> Self:
        check_pools(self)
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the library's signature
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - likewise
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - likewise
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Precedence: arguments, environment, files it names, endpoints file in ``home``."""
        environment, file_settings = FromEnvironment(settings_cls), FromFiles(settings_cls)
        known: dict[str, Any] = {**file_settings(), **environment(), **init_settings()}
        home = Path(known.get("home", cls.model_fields["home"].default))
        return (
            init_settings,
            environment,
            file_settings,
            JsonConfigSettingsSource(settings_cls, json_file=home / ENDPOINTS_FILE),
        )

    def dsn_of(self, service: str) -> str:
        """The DSN for ``service``. Raises ``NotConfigured`` if none is known."""
        secret = self.postgres_service_dsns.get(service) or self.postgres_dsn
        if secret is None:
            raise NotConfigured("RETROFILL_POSTGRES_DSN")
        return secret.get_secret_value()

    def kafka_user(self, client: str) -> str:
        """The Kafka user of a service or of another client in ``retrofill_tools.admin.access``."""
        return self.kafka_users.get(client, f"{self.topic_prefix}{client}")

    def acting_as(self, client: str) -> Settings:
        """The settings with the Kafka login of ``client``, or the common one if it has none."""
        own = self.kafka_passwords.get(client)
        if own is not None:
            return self.model_copy(update={"kafka_username": self.kafka_user(client), "kafka_password": own})
        return self if self.kafka_username else self.model_copy(update={"kafka_username": self.kafka_user(client)})

    def bootstrap_servers(self) -> str:
        """Kafka's address. Raises ``NotConfigured`` if none is known."""
        if self.kafka_bootstrap_servers is None:
            raise NotConfigured("RETROFILL_KAFKA_BOOTSTRAP_SERVERS")
        return self.kafka_bootstrap_servers


class WrongSetting(Exception):
    """A setting or the endpoints file is invalid. The message is one line."""


def read_settings() -> Settings:
    """The settings of this environment and directory. Raises ``WrongSetting``."""
    try:
        return Settings()
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        name = "_".join(str(step) for step in first["loc"][:1]).upper()
        what = f"the setting RETROFILL_{name}" if name else "a setting"
        raise WrongSetting(f"{what} is wrong: {first['msg'].removeprefix('Value error, ')}") from e
    except SettingsError as e:
        raise WrongSetting(f"a setting is wrong (those with braces are JSON): {e}") from e
    except (ValueError, OSError) as e:
        raise WrongSetting(f"{ENDPOINTS_FILE} of the stack in this folder cannot be read: {e}") from e
