"""The settings that a driver needs, which its host sends it, and its first steps with them."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping

from retrofill import log
from retrofill.masking import configure_masking
from retrofill.protocol.launch import known
from retrofill.sdk import checking
from retrofill.system.crash import arm
from retrofill.tracing import configure_tracing

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


SOURCE = "spark-driver"


def settings(incoming: int) -> Config:
    """The host's first message. Exits if the host hangs up before."""
    line = b""
    # Byte by byte: what follows is not read yet.
    while not line.endswith(b"\n"):
        line += os.read(incoming, 1) or sys.exit(0)
    return Config.of(json.loads(line)["settings"])


def set_up(config: Config) -> None:
    """Mask secrets, log and trace as the settings say. Pipelines were checked when they were applied."""
    checking.skip()
    configure_masking(config.redact)
    log.configure(config.log_level)
    configure_tracing(SOURCE)
    arm(config.crash_point)
