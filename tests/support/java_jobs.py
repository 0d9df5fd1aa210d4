"""Jars of the tests' own, compiled against Spark's."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from retrofill.spark import java
from retrofill.spark.java import spark_jars
from retrofill_core.settings import Settings


def build(sources: Iterable[Path], jar: Path, *, without: str = "") -> None:
    """Compile the sources into a jar, in which one class file may be missing. Skips the test where no JDK is installed."""
    beside = java.find(Settings()).resolve().with_name("javac")
    compiler = str(beside) if beside.exists() else shutil.which("javac")
    if compiler is None:
        pytest.skip("there is no javac")
    with tempfile.TemporaryDirectory() as folder:
        command = [compiler, "--release", "17", "-d", folder, "-cp", f"{spark_jars()}/*", *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        with zipfile.ZipFile(jar, "w") as made:
            for each in sorted(Path(folder).rglob("*.class")):
                if each.name != without:
                    made.write(each, each.relative_to(folder))
