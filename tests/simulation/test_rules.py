"""Hypothesis drives the simulation: it chooses the faults and their times, and shrinks failures."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.simulation.faults import Faults
from tests.simulation.schedule import DRAIN_SECONDS, Scenario, run_until_drained
from tests.simulation.shims import exchanged
from tests.simulation.world import World

SHORT = st.sampled_from([0.01, 0.1, 1.0])
LONG = st.sampled_from([4.0, 7.0, 12.0, 25.0])
STEPS = st.integers(1, 200)


class Simulation(RuleBasedStateMachine):
    """Each rule is a client action or a fault; a few steps run between rules."""

    @initialize(seed=st.integers(0, 10_000))
    def begin(self, seed: int) -> None:
        self._libraries = exchanged()
        self._libraries.__enter__()
        self.world = World(seed)
        self.faults = Faults(self.world, 0.0)
        self.scenario = Scenario(self.world)
        self.scenario.decide_failures()
        for service in self.world.services:
            self.world.start(service)
        self.scenario.apply()
        self.scenario.request()

    def _instance(self, number: int) -> Any:
        alive = self.world.alive()
        return alive[number % len(alive)] if alive else None

    # clients

    @rule()
    def request(self) -> None:
        self.scenario.request()

    @rule()
    def apply(self) -> None:
        self.scenario.apply()

    @rule()
    def command(self) -> None:
        self.scenario.command()

    # time and turns

    @rule(steps=STEPS)
    def take_steps(self, steps: int) -> None:
        end = self.world.scheduler.steps + steps
        self.world.scheduler.run(lambda: self.world.scheduler.steps >= end)

    @rule(seconds=SHORT)
    def let_time_pass(self, seconds: float) -> None:
        end = self.world.scheduler.now + seconds
        self.world.scheduler.at(end, lambda: None)
        self.world.scheduler.run(lambda: self.world.scheduler.now >= end)

    # faults

    @rule(number=st.integers(0, 9), machine=st.booleans())
    @precondition(lambda self: len(self.world.alive()) > 1)
    def crash(self, number: int, machine: bool) -> None:
        self.world.crash(self._instance(number), machine=machine)

    @rule(number=st.integers(0, 3))
    def start(self, number: int) -> None:
        service = self.world.services[number % len(self.world.services)]
        if len(self.world.alive(service)) < 3:
            self.world.start(service)

    @rule()
    def rebalance(self) -> None:
        self.world.rebalance()

    @rule(number=st.integers(0, 9), seconds=LONG)
    def become_a_zombie(self, number: int, seconds: float) -> None:
        instance = self._instance(number)
        if instance is not None and not instance.process.cut:
            self.world.cut(instance, seconds)

    @rule(number=st.integers(0, 9), seconds=LONG)
    def stall(self, number: int, seconds: float) -> None:
        instance = self._instance(number)
        if instance is not None and not instance.process.frozen:
            self.world.freeze(instance, seconds)

    @rule(number=st.integers(0, 9), seconds=LONG)
    def jump_a_clock(self, number: int, seconds: float) -> None:
        instance = self._instance(number)
        if instance is not None:
            self.world.scheduler.jump(instance.process, seconds)

    @rule(seconds=SHORT)
    def jump_the_databases_clock(self, seconds: float) -> None:
        self.world.database.jump(seconds)

    @rule()
    def kill_a_driver(self) -> None:
        self.faults.kill_driver()

    @rule()
    def stall_a_driver(self) -> None:
        self.faults.stall_driver()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            if self.world.scheduler.failure is None:
                self.world.heal()
                run_until_drained(self.world, self.scenario, self.world.scheduler.now + DRAIN_SECONDS)
                self.world.oracle.check_end()
        finally:
            self.world.close()
            self._libraries.__exit__(None, None, None)


class TestSimulation(Simulation.TestCase):  # type: ignore[misc, valid-type]  # Hypothesis makes it
    """The examples are fixed, so a failure here fails for everyone."""

    settings = settings(
        max_examples=8,
        stateful_step_count=20,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
