"""A staged table as one of a run's outputs, and the names of tables."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from json import dumps, loads
from typing import Any, Sequence
from urllib.parse import parse_qsl, quote, unquote, urlencode

SCHEME = "table:"
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


@dataclass(frozen=True)
class TableOutput:
    """The rows of a run's interval in ``staged`` replace those in ``table``; both are whole names.

    ``column`` tells to which interval a row belongs; ``type`` is its type, and ``formats`` the whole key if that is not all
    of it (``Key.of`` reads the three). ``undoes``: the run whose rows it replaces, of an undo. ``filled``: columns whose
    values only a commit to the table makes; those in the staged table stand for nothing. ``identity`` tells the table from
    all others, however it is named; older outputs have none.
    """

    table: str
    staged: str
    column: str
    type: str
    format: str
    undoes: int = 0
    filled: tuple[str, ...] = ()
    formats: str = ""
    identity: str = ""

    def __str__(self) -> str:
        more = {name: str(value) for name, value in asdict(self).items() if name != "table"}
        for name in ("undoes", "formats", "identity"):
            if not getattr(self, name):
                del more[name]
        del more["filled"]
        if self.filled:
            more["filled"] = dumps(self.filled)
        return f"{SCHEME}{quote(self.table)}?{urlencode(more)}"

    @classmethod
    def of(cls, output: str) -> TableOutput | None:
        """From an output's text; ``None`` if that is the path of a folder."""
        if not output.startswith(SCHEME):
            return None
        table, _, query = output[len(SCHEME) :].partition("?")
        values = dict(parse_qsl(query))
        undoes = int(values.pop("undoes", 0))
        filled = tuple(loads(values.pop("filled", "[]")))
        return cls(unquote(table), undoes=undoes, filled=filled, **values)

    def rows(self, session: Any) -> Any:
        """The staged rows, of all runs that share the table, as they are to be committed."""
        return session.table(self.staged).drop(*self.filled)


def joined(parts: Sequence[str]) -> str:
    """The name in SQL."""
    return ".".join(map(quoted, parts))


def quoted(part: str) -> str:
    """One part of a name in SQL."""
    return part if _PLAIN.match(part) else identifier(part)


def identifier(name: str) -> str:
    """The name of a column in SQL, where ``current_date`` alone is a function."""
    return "`" + name.replace("`", "``") + "`"


def column_of(name: str) -> Any:
    """The column of that name."""
    from pyspark.sql.functions import col

    return col(identifier(name))


def parts_of(name: str) -> list[str]:
    """The parts of a name in SQL. Raises ``ValueError``."""
    parts, at = [], 0
    while True:
        found = _PART.match(name, at)
        if found is None:
            raise ValueError(f"{name!r} is not the name of a table")
        parts.append(found.group(2) or found.group(1).replace("``", "`"))
        at = found.end()
        if at == len(name):
            return parts
        if name[at] != ".":
            raise ValueError(f"{name!r} is not the name of a table")
        at += 1
