"""Runs ``sql`` tasks: the statements of a file, in the attempt's session."""

from __future__ import annotations

import re
from datetime import date, datetime, timezone
from typing import Any, Mapping, Sequence

from retrofill.driver.preparing import Fields
from retrofill.errors import first_line
from retrofill.outputs.tables.staging import TableStaging
from retrofill.protocol.launch import Sql
from retrofill.sdk.texts import Statement, statements

_LINE_IN_STATEMENT = re.compile(r"\bline (\d+),? pos")
_INT, _LONG = 2**31, 2**63


class SqlFailed(Exception):
    """A statement failed. The message names the file, the line and the statement."""


def run_sql(sql: Sql, task: str, fields: Fields, session: Any, tables: TableStaging) -> None:
    """Execute the statements, and stage the rows of the last one if they are for a table.

    Raises ``SqlFailed``, ``BadArgument``, or ``CannotStage``.
    """
    values = fields.parameters(sql.parameters)
    found = statements(sql.text)
    for number, statement in enumerate(found):
        text = statement.filled(lambda name: literal(values[name]))
        try:
            if sql.into is not None and number == len(found) - 1:
                rows = session.sql(text)
                # Connect analyzes it only now, and an error of the query is not one of staging it.
                rows.schema  # noqa: B018
            elif statement.is_query:
                session.sql(text).write.format("noop").mode("overwrite").save()
            else:
                session.sql(text)
        except Exception as e:
            raise SqlFailed(_told(sql.file, number, found, e)) from e
    if sql.into is not None:
        (name,) = fields.fill([sql.into.name])
        tables.stage(task, session, rows, name, sql.into.column, sql.into.zone)


def literal(value: object) -> str:
    """A value in SQL, whatever the session's settings are."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return _of_int(value)
    if isinstance(value, float):
        return f"DOUBLE('{value!r}')"
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.astimezone(timezone.utc).replace(tzinfo=None)} UTC'"
    if isinstance(value, date):
        return f"DATE '{value}'"
    if isinstance(value, Mapping):
        return f"named_struct({', '.join(f'{_text(str(name))}, {literal(each)}' for name, each in value.items())})"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"array({', '.join(map(literal, value))})"
    return _text(str(value))


def _of_int(value: int) -> str:
    suffix = "" if -_INT <= value < _INT else "L" if -_LONG <= value < _LONG else "BD"
    # After a minus sign, another one would begin a comment.
    return f"({value}{suffix})" if value < 0 else f"{value}{suffix}"


def _text(value: str) -> str:
    if not set(value) & set("'\\$") and value.isprintable():
        return f"'{value}'"
    # How a text is escaped depends on the session, which also replaces ${names}.
    return f"decode(unhex('{value.encode().hex()}'), 'UTF-8')"


def _told(file: str, number: int, found: Sequence[Statement], error: Exception) -> str:
    said = _LINE_IN_STATEMENT.search(str(error))
    line = found[number].line + (int(said[1]) - 1 if said else 0)
    return f"{file}, line {line}, in statement {number + 1} of {len(found)}: {first_line(error)}"
