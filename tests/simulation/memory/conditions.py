"""Compiles the SQL of constraints and partial indexes: simple conditions on one row's columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

_TOKEN = re.compile(r"'[^']*'|\"\w+\"|<>|>=|<=|[=<>(),]|\w+|\S")
_WORDS = {"and": "and", "or": "or", "not": "not", "in": "in", "null": "None", "is": "is", "true": "True"}


@cache
def condition(sql: str) -> Callable[[dict[str, Any]], bool]:
    """Whether a row satisfies ``sql``.

    As in a CHECK, unknown (a comparison with null) is satisfied.
    """
    code = compile(_python(sql), sql, "eval")

    def holds(row: dict[str, Any]) -> bool:
        try:
            return bool(eval(code, {"r": row, "isempty": _isempty}))
        except TypeError:
            # A comparison with null: unknown.
            return True

    return holds


def _python(sql: str) -> str:
    out: list[str] = []
    closes_set = False
    for token in _TOKEN.findall(sql):
        lower = token.lower()
        if token == "(" and out and out[-1] == "in":
            out.append("{")
            closes_set = True
        elif token == ")" and closes_set:
            out.append("}")
            closes_set = False
        elif token == "=":
            out.append("==")
        elif token == "<>":
            out.append("!=")
        elif lower in _WORDS:
            out.append(_WORDS[lower])
        elif token[0] in "'(),<>" or token.isdigit():
            out.append(token)
        elif lower == "isempty":
            out.append(lower)
        elif re.fullmatch(r'"?[a-z_]+"?', token):
            out.append(f"r[{token.strip(chr(34))!r}]")
        else:
            raise NotImplementedError(f"{token!r} in {sql!r}")
    return " ".join(out)


def _isempty(span: Any) -> bool:
    return bool(span.is_empty)
