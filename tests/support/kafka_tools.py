"""Kafka's own command-line tools: wrapper scripts around the jars from Maven Central."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from retrofill import java as runtime
from retrofill.java import spark_jars, trust_options
from retrofill.settings import Settings
from retrofill.stack.kafka import VERSION, cache_folder

CLASSES = {
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}
FETCH_SECONDS = 300


def make_tools(folder: Path) -> Path:
    """Write the scripts to the folder. Skips the test if the jars cannot be downloaded."""
    settings = Settings()
    java = runtime.find(settings)
    cache = cache_folder(settings)
    jars = cache / f"kafka-tools-{VERSION}"
    if not any(jars.glob("kafka-tools-*.jar")):
        _fetch(cache, jars, java)
    for name, main in CLASSES.items():
        script = folder / name
        path = f"{jars}/*:{cache / f'kafka-{VERSION}'}/*"
        script.write_text(
            f'#!/bin/sh\nexec {shlex.quote(str(java))} -Xshare:auto -cp {shlex.quote(path)} {main} "$@"\n'
        )
        script.chmod(0o755)
    return folder


def _fetch(cache: Path, jars: Path, java: Path) -> None:
    ivy = next(spark_jars().glob("ivy-*.jar"))
    draft = jars.with_suffix(f".{os.getpid()}.part")
    command = [
        *(str(java), *trust_options(), "-jar", str(ivy), "-dependency", "org.apache.kafka", "kafka-tools", VERSION),
        *("-confs", "default", "-types", "jar", "bundle", "-cache", str(cache / "ivy")),
        *("-retrieve", f"{draft}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS)
    if done.returncode != 0 or not any(draft.glob("kafka-tools-*.jar")):
        pytest.skip(f"Kafka's tools could not be fetched: {done.stdout[-200:]}")
    draft.rename(jars)
