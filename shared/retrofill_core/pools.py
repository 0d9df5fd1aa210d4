"""Pools: sections of settings that say where drivers run, and with which Spark, Python and environment.

A section has keys that are named like settings and replace them for the pool's drivers, and more
that only pools have. The global settings alone make up the pool ``default``.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import NoDecode

from retrofill.masking import masked_conf, masked_remote
from retrofill.sdk.names import DEFAULT_POOL, check_name
from retrofill_core.domain.data import SHA256
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.setting_types import ConnectAddress, HttpAddress, StoreAddress, check_cluster

if TYPE_CHECKING:
    from retrofill_core.settings import Settings

# Keys that are no settings. The others replace the setting of the same name.
OWN = ("driver_python", "driver_environment", "env", "session_conf")
_OURS = "RETROFILL_"


class Source(BaseModel):
    """Where the value of a variable comes from. It is masked in errors and logs."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    file: Path | None = Field(None, description="A file with the value, without a trailing newline")
    variable: str | None = Field(None, description="A variable of the run-starter's environment")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.file is None) == (self.variable is None):
            raise ValueError('name a file or a variable, like {file = "/run/secrets/key"} or {variable = "KEY"}')
        return self


class EnvironmentSource(BaseModel):
    """Where a packed environment is."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    address: StoreAddress = Field(
        description="A file: its path, or its fsspec address (s3://, gs://, abfs://, hdfs://…)"
    )
    sha256: str = Field(pattern=SHA256, description="Hash of the file's content")


def _check_env(env: dict[str, SecretStr | Source]) -> dict[str, SecretStr | Source]:
    for name in env:
        if name.upper().startswith(_OURS) or not name or "=" in name:
            raise ValueError(f"{name!r} cannot be set: choose a name without '=' that does not begin with {_OURS}")
    return env


class Pool(BaseModel):
    """One pool. What is not set is as in the global settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)

    spark_remote: ConnectAddress | None = Field(None, repr=False)
    spark_ui: HttpAddress | None = None
    spark_submit_master: str | None = None
    spark_submit_deploy_mode: Literal["client", "cluster"] | None = None
    spark_submit_conf: dict[str, str] | None = Field(None, repr=False)
    spark_home: Path | None = None
    spark_jars: list[str] | None = None
    driver_host: str | None = None
    driver_slots: int | None = Field(None, ge=1)
    driver_start_seconds: float | None = Field(None, gt=0)
    driver_python: Path | None = Field(
        None,
        description="Python interpreter of its drivers, which needs pyspark (3.5 or later) and nothing of Retrofill",
    )
    driver_environment: EnvironmentSource | None = Field(
        None,
        description="Packed environment of its drivers, on top of that interpreter; a pipeline's own takes precedence",
    )
    env: Annotated[dict[str, SecretStr | Source], AfterValidator(_check_env)] = Field(
        default_factory=dict, repr=False, description="Environment variables of its drivers"
    )
    session_conf: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Spark settings of its sessions; a pipeline's own take precedence",
    )

    @property
    def changes(self) -> dict[str, Any]:
        """The settings that it replaces."""
        given = {name: getattr(self, name) for name in type(self).model_fields if name not in OWN}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def sources(self) -> dict[str, Source]:
        """The variables whose values are read elsewhere, and masked."""
        return {name: value for name, value in self.env.items() if isinstance(value, Source)}

    def shown(self) -> dict[str, Any]:
        """What is set, as JSON data without secrets."""
        found = self.model_dump(mode="json", exclude_defaults=True)
        found |= {name: masked_conf(found[name]) for name in ("spark_submit_conf", "session_conf") if name in found}
        if self.spark_remote is not None:
            found["spark_remote"] = masked_remote(self.spark_remote)
        return found


def _read_pools(given: object) -> object:
    """Pools by name, from TOML or from a JSON object. Raises ``ValueError`` without quoting values."""
    if isinstance(given, str):
        given = json.loads(given) if given.lstrip().startswith("{") else tomllib.loads(given)
    if not isinstance(given, Mapping):
        raise ValueError("pools are sections by name, like [gpu] in TOML")
    return {check_name(name): _read_pool(name, section) for name, section in given.items()}


def _read_pool(name: str, section: object) -> Pool:
    try:
        return Pool.model_validate(section)
    except ValidationError as e:
        errors = e.errors(include_url=False)
        # Of a variable, which is text or a source: what is wrong with the source, if it is one.
        first = next(
            (each for each in errors if "Source" in str(each["loc"]) and each["type"] != "model_type"), errors[0]
        )
        steps = [str(step) for n, step in enumerate(first["loc"]) if (first["loc"][0], n) != ("env", 2)]
        raise ValueError(f"pool {'.'.join([name, *steps])}: {first['msg'].removeprefix('Value error, ')}") from None


Pools = Annotated[dict[str, Pool], NoDecode, BeforeValidator(_read_pools)]


def pools_of(settings: Settings) -> dict[str, Pool]:
    """All pools that are configured, by name. There is always a default one."""
    return {DEFAULT_POOL: Pool(), **settings.pools}


def unknown_secret(pipeline: PipelineDefinition, secrets: Collection[str]) -> str | None:
    """Which secret of its scripts is not among those that its pool has, in one line, or ``None``."""
    for task in pipeline.tasks:
        for name in () if task.submit is None else task.submit.secrets:
            if name not in secrets:
                return (
                    f"task {task.name!r}: pool {pipeline.pool} has no secret {name!r}; it has: "
                    f"{', '.join(sorted(secrets)) or 'none'}: give it one in its env, from a file or a variable"
                )
    return None


def served(settings: Settings) -> list[str]:
    """The pools that this run-starter serves: those of ``serves``, or all."""
    return list(dict.fromkeys(settings.serves)) or list(pools_of(settings))


def settings_of(settings: Settings, name: str) -> Settings:
    """The settings of a pool's drivers."""
    return settings.model_copy(update=pools_of(settings)[name].changes)


def check_pools(settings: Settings) -> None:
    """Check what a pool's section alone does not show. Raises ``ValueError``."""
    known = pools_of(settings)
    if unknown := [name for name in settings.serves if name not in known]:
        raise ValueError(
            f"RETROFILL_SERVES names the pool {unknown[0]!r}, which RETROFILL_POOLS does not define: there are "
            f"{', '.join(known)}"
        )
    for name, pool in known.items():
        own = settings_of(settings, name)
        if own.spark_submit_deploy_mode == "cluster":
            if own.spark_submit_master is not None:
                check_cluster(own.spark_submit_master, own.driver_host)
            if pool.sources:
                raise ValueError(
                    f"pool {name}: drivers in a cluster get {next(iter(pool.sources))!r} only through Spark's settings, "
                    "where others can read it: use the cluster's own secrets, like spark.kubernetes.driver.secretKeyRef.*"
                )
