"""What a table's format must do: replace the rows of an interval in one commit, exactly once, and keep what was before.

A commit is fenced by the table itself, not by a check before it (``docs/decisions/tables.md``).
"""

from __future__ import annotations

from typing import Any, Protocol

from retrofill.driver.tables.marker import Marker


class NotPublished(Exception):
    """The table does not take the commit, and another try cannot help. The message is one line."""


class Format(Protocol):
    """A table of a format. Methods raise whatever Spark does."""

    def __init__(self, session: Any, table: str) -> None: ...

    def identity(self) -> str:
        """What tells the table from all others. It stays if the table gets another name."""

    def look(self, marker: Marker, *, again: bool) -> str | None:
        """Note the table's state, from which a commit is valid. If there must be no other, return its version.

        ``again``: the run may be published already. To be called before permission to publish is asked
        for: whoever replaces this publisher commits after that.
        """

    def published(self, marker: Marker) -> str | None:
        """The table's version since a commit of the marker's run, if it has one."""

    def runs_published(self, marker: Marker) -> int:
        """How many runs of the marker's attempt are published."""

    def replace(self, rows: Any, condition: str, marker: Marker) -> str | None:
        """Replace the rows that meet the condition. Returns the version, if it can be told. Raises ``NotPublished``."""

    def keep(self, marker: Marker, days: int) -> None:
        """Keep what the commit of the marker's run replaced. Idempotent."""

    def before(self, marker: Marker) -> Any:
        """The whole table as it was before the first commit of that backfill for that interval.

        A run may have replaced a failed one of the same backfill. Raises ``NotKept``.
        """

    def after(self, marker: Marker) -> Any:
        """The whole table as it was after that commit. Raises ``NotKept``."""

    def only_others_since(self, marker: Marker, own: Marker) -> bool:
        """Whether all commits between that one and ``look`` say that they replaced other intervals than ``own``.

        False if that cannot be told. Raises ``NotKept``.
        """
