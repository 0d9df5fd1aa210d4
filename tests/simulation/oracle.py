"""The oracle: runs all checks after every commit, and again after the drain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checks.attempts import Attempts
from tests.simulation.checks.base import Check, Violation
from tests.simulation.checks.budgets import Budgets
from tests.simulation.checks.callbacks import Callbacks
from tests.simulation.checks.coverage import Coverage
from tests.simulation.checks.deadlines import Deadlines
from tests.simulation.checks.edges import Edges
from tests.simulation.checks.endings import Endings
from tests.simulation.checks.hosts import Hosts
from tests.simulation.checks.intake import Intake
from tests.simulation.checks.limits import Limits
from tests.simulation.checks.listed import Listed
from tests.simulation.checks.messages import Answered, Consumed, Letters, Published
from tests.simulation.checks.progress import Progress
from tests.simulation.checks.publishing import Publishing
from tests.simulation.checks.reviews import Reviews
from tests.simulation.checks.suspects import Suspects
from tests.simulation.checks.timeouts import Timeouts
from tests.simulation.checks.turns import Turns
from tests.simulation.checks.undos import Undos
from tests.simulation.checks.waiting import Waiting
from tests.simulation.checks.writing import Writing
from tests.simulation.memory.rows import Tx

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Oracle", "Violation"]


class Oracle:
    def __init__(self, world: World) -> None:
        self._world = world
        self.attempts = Attempts(world)
        self.callbacks = Callbacks(world)
        self.hosts = Hosts(world)
        self.listed = Listed(world)
        self.published = Published(world)
        self.publishing = Publishing(world)
        self.reviews = Reviews(world)
        self.suspects = Suspects(world)
        self.turns = Turns(world)
        self.waiting = Waiting(world)
        self._checks: list[Check] = [
            Edges(world),
            Intake(world),
            Coverage(world),
            Limits(world),
            Writing(world),
            self.attempts,
            self.suspects,
            self.turns,
            Timeouts(world),
            self.hosts,
            Consumed(world),
            self.published,
            Letters(world),
            Endings(world),
            self.publishing,
            self.reviews,
            Budgets(world),
            Progress(world),
            Deadlines(world),
            self.callbacks,
            self.listed,
            Answered(world),
            self.waiting,
            Undos(world),
        ]
        self.checked = 0
        world.database.on_commit.append(self._committed)
        world.broker.on_append.append(self.attempts.appended)

    def _committed(self, tx: Tx) -> None:
        self.checked += 1
        if tx.changes:
            for check in self._checks:
                try:
                    check.committed(tx)
                except Exception as e:  # noqa: BLE001 - a service commits here, and would handle it itself
                    self._world.scheduler.failure = self._world.scheduler.failure or e

    @property
    def events(self) -> int:
        """Number of committed events."""
        return sum(map(len, self.published.events.values()))

    def drained(self) -> bool:
        """Whether all work is done."""
        return self.waiting.drained()

    def check_end(self) -> None:
        """Run the checks that need a drained system."""
        for check in self._checks:
            check.at_the_end()
        if self._world.scheduler.failure is not None:
            raise self._world.scheduler.failure
