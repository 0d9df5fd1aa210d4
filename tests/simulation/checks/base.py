"""The base class of all checks: access to the committed rows, and reporting of violations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.memory.rows import Tx
    from tests.simulation.world import World

Values = dict[str, Any]
# Restated from DESIGN.md. The services' own tables are what is under test.
ENDED = {
    "backfill": frozenset({"succeeded", "failed", "cancelled"}),
    "run": frozenset({"succeeded", "failed", "cancelled"}),
    "task_run": frozenset({"succeeded", "failed", "skipped", "upstream_failed", "cancelled"}),
    "attempt": frozenset({"ended"}),
    "deadline": frozenset({"missed", "met", "void"}),
    "callback": frozenset({"succeeded", "failed", "dropped"}),
}
ACTIVE = frozenset({"running", "paused", "in_review", "cancelling"})
# A user has to go on.
REST = frozenset({"paused", "in_review"})
LIVE = frozenset({"starting", "running", "publishing"})
UNFINISHED = LIVE | {"queued", "staged"}


class Violation(AssertionError):
    """An invariant was broken. ``check`` names the check that found it."""

    def __init__(self, check: str, what: str) -> None:
        super().__init__(f"{check}: {what}")
        self.check = check


class Check:
    """One group of invariants."""

    name = ""

    def __init__(self, world: World) -> None:
        self.world = world
        self.database = world.database

    def violated(self, what: str) -> None:
        """Stop the schedule with a violation.

        Does not raise: the caller may be inside a service, which would handle the error itself.
        """
        scheduler = self.world.scheduler
        scheduler.failure = scheduler.failure or Violation(self.name, what)

    def require(self, holds: bool, what: Callable[[], str]) -> None:
        """Report a violation unless ``holds``.

        ``what`` is lazy because formatting whole rows is slow.
        """
        if not holds:
            self.violated(what())

    def rows(self, table: str) -> list[Values]:
        """Committed rows of a table."""
        return self.database.rows(table)

    def row(self, table: str, key: str, value: Any) -> Values:
        """The committed row with ``value`` in column ``key``."""
        return next(row for row in self.rows(table) if row[key] == value)

    def committed(self, tx: Tx) -> None:
        """Called after each commit."""

    def at_the_end(self) -> None:
        """Called after the faults have stopped and the system has drained."""


def current(runs: Iterable[Values]) -> list[Values]:
    """The runs that count: those that no retry replaced."""
    return [run for run in runs if run["superseded_by"] is None]


def changed(tx: Tx, table: str) -> Iterable[tuple[Values | None, Values | None]]:
    """Changed rows of a table: (before, after)."""
    return [(old, new) for name, old, new in tx.changes if name == table]


def inserted(tx: Tx, table: str) -> list[Values]:
    """New rows of a table."""
    return [new for old, new in changed(tx, table) if old is None and new is not None]
