"""Staged tables of earlier attempts: found by their names, and dropped before the same intervals are staged again.

``delays__retrofill_3f2a9c01d4_1cprxs0_1cpt5uo_25_1`` is the first table of attempt 25, for rows of ``delays`` in an interval,
or in the intervals of a range, of one pipeline.
"""

from __future__ import annotations

import hashlib
import re
import string
import threading
from datetime import datetime, timezone
from typing import Any, Iterator

from retrofill.errors import first_line
from retrofill.outputs.cannot_stage import CannotStage
from retrofill.outputs.tables.hive_partitions import SESSION_CATALOG
from retrofill.outputs.tables.hive_records import discard, is_over
from retrofill.outputs.tables.iceberg import branches, drop_branch
from retrofill.outputs.tables.protocol import OURS, drop
from retrofill.protocol.launch import Launch, Piece
from retrofill.protocol.table_output import joined

_NO_NAMESPACE = ("SCHEMA_NOT_FOUND", "NoSuchNamespace", "NoSuchDatabase")
_DIGITS = string.digits + string.ascii_lowercase
_EPOCH = datetime(1, 1, 1, tzinfo=timezone.utc)


class StagedTables:
    """Names an attempt's staged tables, and drops those of earlier attempts. Thread-safe."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._lock = threading.Lock()
        self._swept: set[str] = set()
        text = f"{launch.installation} {launch.pipeline.name}"
        self._pipeline = f"{OURS}{hashlib.sha256(text.encode()).hexdigest()[:10]}_"
        self._named = re.compile(f".*{self._pipeline}([0-9a-z]+)_([0-9a-z]+)_([0-9]+)_[0-9]+", re.IGNORECASE)

    def name(self, target: str, piece: Piece, number: int) -> str:
        """The name of the attempt's table of that number, for rows of ``target``."""
        start, end = map(_in_seconds, (piece.interval_start, piece.interval_end))
        return f"{target}{self._pipeline}{_short(start)}_{_short(end)}_{self._launch.attempt_id}_{number}"

    def sweep(self, session: Any, namespace: list[str]) -> None:
        """Drop what earlier attempts at the intervals have left in a namespace: it was not accepted, or is published.

        Looks once for all runs of the attempt. Raises ``CannotStage`` if there is no such namespace.
        """
        with self._lock:
            if joined(namespace) not in self._swept:
                for name in list(self._left(session, joined(namespace))):
                    (discard if namespace[0] == SESSION_CATALOG else drop)(session, joined([*namespace, name]))
                self._swept.add(joined(namespace))

    def sweep_branches(self, session: Any, table: str) -> None:
        """Drop the branches of a table to which scripts of earlier attempts at the intervals have written."""
        for name in branches(session, table):
            if self._is_of_former(name):
                drop_branch(session, table, name)

    def _left(self, session: Any, namespace: str) -> Iterator[str]:
        try:
            found = session.sql(f"SHOW TABLES IN {namespace} LIKE '*{self._pipeline}*'").collect()
        except Exception as e:
            # Catalogs say so in different ways, some of them not as an error of the statement.
            if not any(each in str(e) for each in _NO_NAMESPACE):
                raise
            raise CannotStage(f"no table can be staged in {namespace}: {first_line(e)}") from e
        for row in found:
            if is_over(row.tableName.lower()) or self._is_of_former(row.tableName):
                yield row.tableName

    def _is_of_former(self, name: str) -> bool:
        """Whether it is the name of what an earlier attempt at one of the intervals has left."""
        parts = self._named.fullmatch(name)
        return parts is not None and self._is_left(int(parts[1], 36), int(parts[2], 36), int(parts[3]))

    def _is_left(self, start: int, end: int, attempt: int) -> bool:
        """Whether nobody publishes from it any more. Its attempt had an interval that is this one's now.

        Not that of an ``unpublished`` attempt: of a range, one interval may be tried again while others wait for a publisher or
        a review. Nor of a later one: then this attempt is lost, and does not know it yet.
        """
        if attempt >= self._launch.attempt_id or attempt in self._launch.unpublished:
            return False
        runs = self._launch.runs
        return any(start < _in_seconds(run.interval_end) and _in_seconds(run.interval_start) < end for run in runs)


def _in_seconds(moment: datetime) -> int:
    return int((moment - _EPOCH).total_seconds())


def _short(number: int) -> str:
    """A number with as few digits as a name may have."""
    digits = ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits or "0"
