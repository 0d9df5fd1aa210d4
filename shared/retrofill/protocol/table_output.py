"""The outputs of a run as texts: directories of this machine, and rows staged for a table, whose names are SQL's.

A directory is an absolute path, or a ``file:`` URI as Hadoop reads it: ``#`` and ``?`` are ordinary characters, unlike for
``urlsplit``.
"""

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
        # Earlier versions said who drops the staged table.
        values.pop("drops", None)
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


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_FILE = re.compile(r"file:(?://(?:localhost)?(?=/)|(?!//))(/.*)", re.DOTALL | re.IGNORECASE)


def path_in(uri: str) -> str | None:
    """The absolute path in a ``file:`` URI of this machine, as written; ``None`` if it is none."""
    found = _FILE.fullmatch(uri)
    return None if found is None else found.group(1)


def why_not_local(path: str) -> str | None:
    """Why no directory of this name can be staged, in one line; ``None`` if it is absolute and of this machine.

    Publication needs a rename of directories that is atomic and fails if its source is missing or its target is not, as
    on POSIX.
    """
    if path_in(path) is not None:
        return None
    scheme = _SCHEME.match(path)
    if scheme is not None:
        return (
            f"{path} cannot be staged: a rename on {scheme.group(1)}: does not fail when it must; make a table whose partitions "
            "are in that directory and stage its rows (run.stage_table, a file of SQL, or {stage_location:TABLE} for a script), "
            "or use a POSIX file system"
        )
    return None if path.startswith("/") else f"{path!r} cannot be staged: give the absolute path of a directory"
