"""The settings that a driver needs, which its host sends it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping

from retrofill.protocol.launch import known

_PATHS = ("spark_home", "java_home", "bundled_java")


@dataclass(frozen=True)
class Config:
    """Named like the settings. ``bundled_java``: the Java that Retrofill brings along, if nothing else is found."""

    spark_remote: str | None = field(default=None, repr=False)
    spark_ui: str | None = None
    spark_jars: tuple[str, ...] = ()
    spark_home: Path | None = None
    spark_submit_master: str | None = None
    spark_submit_deploy_mode: str = "client"
    spark_submit_conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    java_home: Path | None = None
    bundled_java: Path | None = None
    redact: tuple[str, ...] = field(default=(), repr=False)
    log_level: str = "INFO"
    crash_point: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Config:
        """From the host's message."""
        values = known(cls, given)
        values.update({name: Path(values[name]) for name in _PATHS if values.get(name) is not None})
        return cls(**values)
