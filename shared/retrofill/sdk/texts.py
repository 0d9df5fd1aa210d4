"""The texts of tasks without code of Retrofill's: the fields in them, like ``{interval.start:%Y-%m-%d}``, the statements and
parameters of a file of SQL, the tables that scripts and files of SQL write, and the directories that can be staged.

The values of fields belong to a run (``script_texts``). SQL is parsed as Spark reads it. Its parameters become literals in the
text: Spark's own parameterized SQL takes them neither in views, defaults and hints nor in sessions with the extensions of
Iceberg and Delta (4.1).
"""

from __future__ import annotations

import re
import string
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, Callable, Iterator, Mapping, Union

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


_TOKEN = re.compile(
    r"""
    (?P<comment> --[^\n]* )
  | (?P<bracketed> /\* )
  | (?P<text> [rR]'[^']*' | [rR]"[^"]*" | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*` )
  | (?P<dollar> \$(?P<tag>(?:[A-Za-z_]\w*)?)\$.*?\$(?P=tag)\$ )
  | (?P<open> [rR]?' | [rR]?" | ` | \$(?:[A-Za-z_]\w*)?\$ )
  | (?P<word> [^\W\d]\w* )
  | (?P<number> \d\w* )
  | (?P<parameter> (?<![\w'"`)\]:}]):[A-Za-z_]\w* )
  | (?P<space> \s+ )
  | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
# What each file may use beside its own parameters, as texts of scripts name them.
GIVEN = {
    "start": "{interval.start}",
    "end": "{interval.end}",
    "first_day": "{interval.first_day}",
    "last_day": "{interval.last_day}",
    "run_id": "{run.id}",
    "run_attempt": "{run.attempt}",
    "backfill_id": "{run.backfill_id}",
}
# After END, they tell which statement of a script ends, one that does not begin with BEGIN or CASE.
_ENDED = ("IF", "WHILE", "LOOP", "REPEAT", "FOR")
_BLANK = ("comment", "bracketed", "space")
_CHANGES = ("INSERT", "MERGE", "UPDATE", "DELETE")


class BadSql(ValueError):
    """The text is not a file of SQL. The message names the line."""


@dataclass(frozen=True)
class Token:
    """``kind``: as in ``_TOKEN``. ``line``: where it begins."""

    kind: str
    text: str
    line: int


@dataclass(frozen=True)
class Statement:
    """One statement, from its first token to its last one, with the comments between."""

    tokens: tuple[Token, ...]

    @property
    def line(self) -> int:
        return self.tokens[0].line

    @property
    def parameters(self) -> list[tuple[str, int]]:
        """The names, and their lines."""
        return [(each.text[1:], each.line) for each in self.tokens if each.kind == "parameter"]

    @property
    def is_query(self) -> bool:
        """Whether it returns rows and does nothing else."""
        words = [each.text.upper() for each in self.tokens if each.kind in ("word", "other")]
        if words[:1] not in (["WITH"], ["FROM"]):
            return words[:1] in (["SELECT"], ["VALUES"], ["TABLE"], ["("])
        depths = accumulate((word == "(") - (word == ")") for word in words)
        return not any(depth == 0 and word in _CHANGES for word, depth in zip(words, depths))

    def filled(self, literal: Callable[[str], str]) -> str:
        """The text, with what ``literal`` makes of the name of each parameter."""
        return "".join(literal(each.text[1:]) if each.kind == "parameter" else each.text for each in self.tokens)


def statements(text: str) -> list[Statement]:
    """The statements of a file. Raises ``BadSql``."""
    found: list[list[Token]] = [[]]
    depth, before, begin = 0, "", None
    for token in _tokens(text):
        if token.kind == "other" and token.text == ";" and depth == 0:
            found.append([])
            before = ""
            continue
        found[-1].append(token)
        if token.kind in _BLANK:
            continue
        if token.kind == "word" and before not in (".", "AS"):
            change = _deeper(token.text.upper(), before, found[-1], inside=depth > 0)
            begin = token if depth == 0 and before != "END" and change else begin
            depth = max(depth + change, 0)
        before = token.text.upper()
    if depth and begin is not None:
        raise BadSql(f"line {begin.line}: BEGIN has no END")
    return [Statement(tuple(each)) for each in map(_without_edges, found) if each]


def _deeper(word: str, before: str, tokens: list[Token], *, inside: bool) -> int:
    """By how much a word of a script nests what follows deeper. ``tokens``: of its statement, to the word."""
    if before == "END" and word in _ENDED:
        # It ends none of those that are counted.
        return 1
    if word == "BEGIN":
        return 1 if inside or _is_first(tokens) else 0
    if word == "CASE":
        return 1 if inside and before != "END" else 0
    return -1 if inside and word == "END" else 0


def _is_first(tokens: list[Token]) -> bool:
    """Whether the last of the tokens begins a statement, or follows the label that does."""
    seen = [each for each in tokens if each.kind not in _BLANK]
    return len(seen) == 1 or (len(seen) == 3 and seen[1].text == ":")


def _without_edges(tokens: list[Token]) -> list[Token]:
    """Without the comments and spaces at both ends."""
    marks = [n for n, each in enumerate(tokens) if each.kind not in _BLANK]
    return tokens[marks[0] : marks[-1] + 1] if marks else []


def _tokens(text: str) -> Iterator[Token]:
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        assert found is not None and found.lastgroup is not None
        kind = next(name for name in found.groupdict() if name != "tag" and found[name] is not None)
        if kind == "open":
            raise BadSql(f"line {line}: what {found.group()} begins has no end")
        end = _end_of_comment(text, at, line) if kind == "bracketed" else found.end()
        yield Token(kind, text[at:end], line)
        line += text.count("\n", at, end)
        at = end


def _end_of_comment(text: str, start: int, line: int) -> int:
    """Comments may be nested."""
    depth = 0
    for mark in re.compile(r"/\*|\*/").finditer(text, start):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    raise BadSql(f"line {line}: the comment that /* begins has no end")


# Spark settings that send commits to audited Iceberg tables elsewhere than to what readers see.
REDIRECTIONS = BRANCH, _ID = ("spark.wap.branch", "spark.wap.id")
# A column's name, or names with formats.
Declared = Union[str, Mapping[str, Union[str, None]]]


@dataclass(frozen=True)
class Table:
    """A Delta or Iceberg table of which a script or a file of SQL replaces the rows of its interval.

    ``name``: in Spark's SQL; it may have the fields of ``args``. ``column``, ``zone``: as for
    ``run.stage_table``. ``with_rows``: what the script writes to has the interval's present rows, as MERGE,
    UPDATE and DELETE need them; otherwise it is empty. ``redirected``: the script writes to ``name`` itself,
    an Iceberg table with ``write.wap.enabled=true``, and ``spark.wap.branch`` sends its commits to a branch.
    ``sparse``: an interval may have no rows; of a redirected one, its rows may stay as they are.
    """

    name: str
    column: Declared
    zone: str = ""
    with_rows: bool = False
    sparse: bool = False
    redirected: bool = False

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
# A directory of this machine as Hadoop reads it: ``#`` and ``?`` are ordinary characters, unlike for ``urlsplit``.
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
