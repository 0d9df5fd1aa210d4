"""Writes JSON values as YAML that people like to read. Pure; no package is needed to write it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

# Everything else might be read as a number, a date, a truth value or syntax.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_NOT_TEXT = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def as_yaml(value: Any) -> str:
    """One document, which YAML 1.1 and 1.2 read as the same ``value``."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _entry(f"{_scalar(name)}:", each, nested="  ")
    elif isinstance(value, list) and value:
        for each in value:
            if isinstance(each, dict | list) and each:
                first, *others = _lines(each)
                yield f"- {first}"
                yield from (f"  {line}" for line in others)
            else:
                yield from _entry("-", each, nested="  ")
    else:
        yield from _entry("", value, nested="")


def _entry(before: str, value: Any, nested: str) -> Iterator[str]:
    """A value behind a name or dash, or below it."""
    if isinstance(value, dict | list) and value:
        yield before
        yield from (f"{nested}{line}" for line in _lines(value))
    elif before and isinstance(value, str) and _is_block(value):
        yield f"{before} |2{'' if value.endswith(chr(10)) else '-'}"
        yield from (f"  {line}" if line else "" for line in value.removesuffix("\n").split("\n"))
    else:
        yield f"{before} {_scalar(value)}".lstrip()


def _is_block(text: str) -> bool:
    """Whether it can be written as its lines, such as a traceback."""
    lines = text.removesuffix("\n").split("\n")
    return len(lines) > 1 and lines[-1] != "" and all(line.isprintable() and line == line.rstrip() for line in lines)


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        text = json.dumps(value)
        # YAML 1.1 takes 1e-05 for text.
        return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text
    if _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
