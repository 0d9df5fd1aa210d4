"""Simulated callback targets: they take time, sometimes fail, and count their calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from callback_runner.decide import Outcome, Raised, Returned
from callback_runner.record import Claim
from tests.simulation.primitives import Event
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.world import World


# Longer than any call may take.
HANGING_SECONDS = 60.0


class SimulatedTry:
    """One callback attempt."""

    def __init__(self, world: World, process: Process, claim: Claim, alive_until: Callable[[], float]) -> None:
        self._world, self._process, self._claim = world, process, claim
        self._alive_until = alive_until
        self._ended = Event()
        self._outcome: Outcome | None = None
        self._killed = False
        self.begun = False
        world.scheduler.spawn(process, "call", self._call)

    def _call(self) -> None:
        calling = self._world.calling
        calling.append(self._process)
        try:
            self._do()
        finally:
            calling.remove(self._process)

    def _do(self) -> None:
        world, scheduler = self._world, self._world.scheduler
        scheduler.step("call")
        if self._killed or scheduler.now + self._process.offset >= self._alive_until():
            self._ended.set()
            return
        self.begun = True
        world.called(self._claim)
        hangs = world.receivers_hang and self._claim.has_receiver and scheduler.now < world.receivers_back_at
        scheduler.wait(object(), HANGING_SECONDS if hangs else scheduler.random.random() * world.call_seconds)
        away = hangs or (self._claim.has_receiver and scheduler.now < world.receivers_back_at)
        fails = away or scheduler.random.random() < world.failing_calls
        if not fails:
            world.done(self._claim)
        if not self._killed:
            self._outcome = Raised("the target failed", uncertain=True) if fails else Returned()
        self._ended.set()

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds``; returns whether the call ended."""
        return self._ended.wait(max(0.0, seconds))

    def lease_renewed(self, alive_until: float) -> None:
        """No-op: ``alive_until()`` already includes the renewal."""

    def kill(self) -> None:
        """Abandon the call."""
        self._killed = True

    def finish(self) -> Outcome | None:
        """The outcome, or ``None`` if there is none."""
        return self._outcome


class SimulatedKinds:
    """Replaces the real callback kinds: every kind begins a simulated call."""

    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process = world, process

    def begin(self, claim: Claim, alive_until: Callable[[], float]) -> tuple[SimulatedTry, float] | Outcome:
        """A new attempt and its time limit in seconds."""
        return SimulatedTry(self._world, self._process, claim, alive_until), 7.0
