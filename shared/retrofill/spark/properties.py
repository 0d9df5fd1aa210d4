"""Reads Java properties files, such as Spark's ``spark-defaults.conf``."""

from __future__ import annotations

import re
from typing import Iterator

_KEY = re.compile(r"(?:\\.|[^\\=:\s])*")
_SEPARATOR = re.compile(r"\s*[=:]?\s*")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_MEANS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


def read_properties(text: str) -> dict[str, str]:
    """The properties in the text, by name. As in Java, of two with one name the later counts."""
    found = {}
    for line in _logical_lines(text):
        key = _KEY.match(line)
        assert key is not None
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None
        found[_plain(key.group())] = _plain(line[separator.end() :])
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blank ones, each joined with those that continue it."""
    waiting = ""
    for line in re.split(r"\r\n|\r|\n", text):
        part = line.lstrip(" \t\f")
        if not waiting and (not part or part[0] in "#!"):
            continue
        backslashes = len(part) - len(part.rstrip("\\"))
        if backslashes % 2:
            waiting += part[:-1]
            continue
        yield waiting + part
        waiting = ""
    if waiting:
        yield waiting


def _plain(text: str) -> str:
    plain = _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _MEANS.get(m[2], m[2]), text)
    # Java escapes units of UTF-16, of which some characters have two.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
