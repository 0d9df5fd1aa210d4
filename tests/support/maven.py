"""Jars from Maven Central that only tests need, fetched once by Spark's own Ivy."""

from __future__ import annotations

import subprocess
from pathlib import Path

from retrofill import java as runtime
from retrofill.java import spark_jars, trust_options
from retrofill.settings import Settings

FETCH_SECONDS = 300


class CannotFetch(Exception):
    """Maven did not answer, or has no such jar."""


def fetch(folder: Path, group: str, name: str, version: str) -> Path:
    """The jar's path in ``folder``. Raises ``CannotFetch``."""
    jar = folder / f"{name}-{version}.jar"
    if jar.exists():
        return jar
    ivy = next(spark_jars().glob("ivy-*.jar"))
    command = [
        *(str(runtime.find(Settings())), *trust_options(), "-jar", str(ivy), "-notransitive"),
        *("-dependency", group, name, version, "-confs", "default"),
        *("-types", "jar", "-cache", str(folder.parent / "ivy")),
        *("-retrieve", f"{folder}/[artifact]-[revision].[ext]"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    if done.returncode != 0 or not jar.exists():
        raise CannotFetch(f"{name} {version} could not be fetched: {done.stdout[-200:]}")
    return jar
