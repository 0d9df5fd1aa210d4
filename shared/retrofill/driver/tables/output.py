"""A staged table as one of a run's outputs, and the names of tables."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Sequence
from urllib.parse import parse_qsl, quote, unquote, urlencode

SCHEME = "table:"
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


@dataclass(frozen=True)
class TableOutput:
    """The rows of a run's interval in ``staged`` replace those in ``table``; both are whole names.

    ``column`` tells to which interval a row belongs; ``type`` is its type. ``drops``: how many runs share the staged table
    if this is the last one, which drops it when all are published, else 0. ``undoes``: the run whose rows it replaces, of an
    undo. ``identity`` tells the table from all others, however it is named; older outputs have none.
    """

    table: str
    staged: str
    column: str
    type: str
    format: str
    drops: int = 1
    undoes: int = 0
    identity: str = ""

    def __str__(self) -> str:
        more = {name: str(value) for name, value in asdict(self).items() if name != "table"}
        for name in ("undoes", "identity"):
            if not getattr(self, name):
                del more[name]
        return f"{SCHEME}{quote(self.table)}?{urlencode(more)}"

    @classmethod
    def of(cls, output: str) -> TableOutput | None:
        """From an output's text; ``None`` if that is the path of a folder."""
        if not output.startswith(SCHEME):
            return None
        table, _, query = output[len(SCHEME) :].partition("?")
        values = dict(parse_qsl(query))
        drops, undoes = int(values.pop("drops")), int(values.pop("undoes", 0))
        return cls(unquote(table), drops=drops, undoes=undoes, **values)


def joined(parts: Sequence[str]) -> str:
    """The name in SQL."""
    return ".".join(map(quoted, parts))


def quoted(part: str) -> str:
    """One part of a name in SQL."""
    return part if _PLAIN.match(part) else "`" + part.replace("`", "``") + "`"


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
