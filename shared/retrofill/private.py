"""What a command of Spark is told without being in the list of processes: files that their owner alone may read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_properties(file: Path, conf: Mapping[str, str]) -> list[str]:
    """Write Spark's settings; what spark-submit takes instead of ``--conf``. It reads ``spark-defaults.conf`` too, as ever."""
    _write(file, "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in conf.items()))
    return ["--properties-file", str(file), "--load-spark-defaults"]


def write_options(file: Path, options: Sequence[str]) -> list[str]:
    """Write options of a JVM; what ``java`` takes instead of them."""
    quoted = ('"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"' for option in options)
    _write(file, "".join(f"{option}\n" for option in quoted))
    return [f"@{file}"]


def _write(file: Path, text: str) -> None:
    # Anew, as an old one might be readable by others.
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        out.write(text)


def _escaped(text: str) -> str:
    """As Java's property files have it."""
    plain = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    escaped = "".join(plain.get(c, c) if c.isprintable() or c in plain else f"\\u{ord(c):04x}" for c in text)
    return "".join(f"\\{c}" if c in "=:#! " else c for c in escaped)
