"""Kafka's own command-line tools: wrapper scripts around the jars from Maven Central."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from retrofill.spark import java as runtime
from retrofill_core.settings import Settings
from retrofill_tools.stack.kafka import VERSION
from retrofill_tools.stack.maven import Artifact, FetchFailed, cache_folder
from tests.support.maven import maven

CLASSES = {
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}
TOOLS = Artifact("org.apache.kafka", "kafka-tools", VERSION, "30 MB", whole=True)


def make_tools(folder: Path) -> Path:
    """Write the scripts to the folder. Skips the test if the jars cannot be downloaded."""
    settings = Settings()
    java = runtime.find(settings)
    try:
        jars = maven(settings, java).fetch("Kafka-tools", TOOLS)
    except FetchFailed as e:
        pytest.skip(str(e))
    for name, main in CLASSES.items():
        script = folder / name
        path = f"{jars}/*:{cache_folder(settings) / f'kafka-{VERSION}'}/*"
        script.write_text(
            f'#!/bin/sh\nexec {shlex.quote(str(java))} -Xshare:auto -cp {shlex.quote(path)} {main} "$@"\n'
        )
        script.chmod(0o755)
    return folder
