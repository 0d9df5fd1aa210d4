"""Finds the fields of texts, like ``{interval.start:%Y-%m-%d}``. Their values belong to a run (``script_texts``)."""

from __future__ import annotations

import re
import string
from typing import Callable

# Where a field begins in a text that has braces of its own, such as JSON.
_BEGINS = re.compile(r"(?<!\{)\{(?=(?:interval\.|run\.|conf[.\[]|secret[.\[]|stage(?:d|_[a-z]+)?:))")


def outline(text: str, plain: Callable[[str], str] = str) -> str:
    """The text with ``*`` instead of each field, and what ``plain`` makes of the rest.

    A field with slashes, like ``{interval.start:%Y/%m}``, becomes as many directories.
    """
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError:
        # It is refused by ``check``.
        return plain(text)
    return "".join(
        plain(part) + ("" if field is None else "/".join("*" * (1 + (spec or "").count("/"))))
        for part, field, spec, _ in parts
    )


def parted(text: str) -> list[tuple[str, bool]]:
    """The fields of a text that has other braces too, and what is between them; whether each is a field.

    Fields may have others in them. Raises ``ValueError``.
    """
    parts, at = [], 0
    while (found := _BEGINS.search(text, at)) is not None:
        start, depth = found.start(), 0
        for end in range(start, len(text)):
            depth += (text[end] == "{") - (text[end] == "}")
            if depth == 0 or text[end] == "\n":
                break
        if depth:
            shown = text[start : start + 40].splitlines()[0]
            raise ValueError(f"the field that begins with {shown!r} has no closing brace in its line")
        parts += [(text[at:start], False), (text[start : end + 1], True)]
        at = end + 1
    return [*parts, (text[at:], False)]


def fields_between(text: str) -> list[str]:
    """The different fields of a text that has other braces too. Raises ``ValueError``."""
    return list(dict.fromkeys(part for part, is_field in parted(text) if is_field))


def is_inside(path: str, root: str) -> bool:
    """Whether ``path`` is inside the folder ``root``, by its text alone, without any ``..``."""
    return path.startswith(f"{root.rstrip('/')}/") and ".." not in path.split("/")
