"""Configuration files of Hadoop's and Hive's servers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape


def write_site(file: Path, values: Mapping[str, str]) -> None:
    """Write a ``…-site.xml`` with these properties."""
    rows = [f"<property><name>{k}</name><value>{escape(v)}</value></property>" for k, v in values.items()]
    file.write_text("\n".join(["<configuration>", *rows, "</configuration>"]))
