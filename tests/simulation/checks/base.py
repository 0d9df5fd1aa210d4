"""What all checks share: where they look, and how they say that something does not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.memory.rows import Tx
    from tests.simulation.world import World

Values = dict[str, Any]
# Written down here as DESIGN.md has them, and not read from the services' code, which is what is checked.
ENDED = {
    "backfill": frozenset({"succeeded", "failed", "cancelled"}),
    "run": frozenset({"succeeded", "failed", "cancelled"}),
    "task_run": frozenset({"succeeded", "failed", "skipped", "upstream_failed", "cancelled"}),
    "deadline": frozenset({"missed", "met", "void"}),
    "callback": frozenset({"succeeded", "failed"}),
}
ACTIVE = frozenset({"running", "paused", "cancelling"})
LIVE = frozenset({"starting", "running", "publishing"})
UNFINISHED = LIVE | {"queued"}


class Violation(AssertionError):
    """An invariant does not hold. ``check``: which check found that."""

    def __init__(self, check: str, what: str) -> None:
        super().__init__(f"{check}: {what}")
        self.check = check


class Check:
    """One part of what must hold."""

    name = ""

    def __init__(self, world: World) -> None:
        self.world = world
        self.database = world.database

    def violated(self, what: str) -> None:
        """Stop the schedule. Not raised here: this may be inside of a service, which would handle it as its own failure."""
        scheduler = self.world.scheduler
        scheduler.failure = scheduler.failure or Violation(self.name, what)

    def require(self, holds: bool, what: Callable[[], str]) -> None:
        """``violated`` where it does not hold. To put whole rows into words takes longer than to look at them."""
        if not holds:
            self.violated(what())

    def rows(self, table: str) -> list[Values]:
        """What is committed."""
        return self.database.rows(table)

    def row(self, table: str, key: str, value: Any) -> Values:
        """The committed row that has ``value`` in ``key``."""
        return next(row for row in self.rows(table) if row[key] == value)

    def committed(self, tx: Tx) -> None:
        """A transaction has committed."""

    def at_the_end(self) -> None:
        """The faults are over and everything has drained."""


def changed(tx: Tx, table: str) -> Iterable[tuple[Values | None, Values | None]]:
    """What the transaction made of the rows of a table: before and after."""
    return [(old, new) for name, old, new in tx.changes if name == table]
