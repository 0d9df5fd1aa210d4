"""Finds the parts of a migration that would break the previous release while it is running."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from retrofill_core.store import migrations

VERSIONS = Path(migrations.__file__).parent / "versions"
_NEW_TABLE = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(\S+)", re.IGNORECASE)
_ADDED_COLUMN = re.compile(r"ADD COLUMN (?:IF NOT EXISTS )?(\S+) ([^,]*(?:\([^)]*\)[^,]*)*)", re.IGNORECASE)
# Patterns in statements about existing tables → the effect on a release that knows the old schema.
_HARM = {
    r"\bDROP TABLE\b": "drops a table",
    r"\bDROP COLUMN\b": "drops a column",
    r"\bRENAME\b": "renames",
    r"\bSET NOT NULL\b": "has a column not be null any more",
    r"\bALTER COLUMN \S+ (?:SET DATA )?TYPE\b": "changes a column's type",
    r"\bALTER COLUMN \S+ DROP DEFAULT\b": "drops a default",
    r"\bTRUNCATE\b|\bDELETE FROM\b": "deletes rows",
    r"\bDROP (?:SCHEMA|TYPE|FUNCTION|VIEW|SEQUENCE)\b": "drops what may be in use",
}


def harm(sql: str) -> list[str]:
    """The statements that break the previous release, one line each. Empty if all only add."""
    statements = [" ".join(each.split()) for each in sql.split(";\n") if each.strip()]
    new = {match.group(1) for each in statements if (match := _NEW_TABLE.match(each))}
    return [fields for each in statements if not _is_about(each, new) for fields in _harm_of(each)]


def _is_about(statement: str, tables: set[str]) -> bool:
    """Whether the statement changes a table that the same migration created."""
    altered = re.match(r"(?:ALTER|DROP) TABLE (?:ONLY |IF EXISTS )*(\S+)", statement, re.IGNORECASE)
    return altered is not None and altered.group(1) in tables


def _harm_of(statement: str) -> Iterator[str]:
    for pattern, fields in _HARM.items():
        if re.search(pattern, statement, re.IGNORECASE):
            yield f"{fields}: {statement}"
    for name, kind in _ADDED_COLUMN.findall(statement):
        if re.search(r"\bNOT NULL\b", kind, re.IGNORECASE) and not re.search(r"\bDEFAULT\b", kind, re.IGNORECASE):
            yield f"adds {name}, which is not null and has no default: {statement}"


def is_contract(module: str) -> bool:
    """Whether the migration declares, by ``contract = True``, that it removes what no release in
    use needs.
    """
    return re.search(r"^contract = True$", module, re.MULTILINE) is not None
