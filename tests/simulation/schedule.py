"""One schedule: a random scenario, faults while it runs, then peace until everything has drained, then the last look."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from retrofill.bus.topics import WATCHER, Topic
from retrofill.domain.pipeline import PipelineDefinition
from retrofill.messages.backfills import (
    BackfillCancelRequested,
    BackfillPauseRequested,
    BackfillRequested,
    BackfillResumeRequested,
)
from retrofill.messages.pipelines import PipelineApplied
from tests.simulation.memory import errors
from tests.simulation.scheduler import Stuck, Task
from tests.simulation.world import World
from tests.support.installation import alert, daily

FIRST = datetime(2020, 1, 1, tzinfo=UTC)
BUSY_SECONDS = 20.0
DRAIN_SECONDS = 900.0


@dataclass(frozen=True)
class Result:
    """What a schedule came to."""

    seed: int
    steps: int
    statements: int
    commits: int
    events: int
    injected: Counter[str]


class Faults:
    """Goes wrong at random steps, until told to stop."""

    def __init__(self, world: World, chance: float) -> None:
        self._world = world
        self._chance = chance
        self.on = True
        kinds: list[Any] = [
            self.crash,
            self.crash,
            self.lose_machine,
            self.start,
            self.rebalance,
            self.freeze,
            self.cut,
        ]
        self._kinds: list[Any] = [
            *kinds,
            self.jump,
            self.jump_database,
            self.kill_driver,
            self.stall_driver,
            self.disconnect,
        ]
        # Each schedule has its own favourites.
        self._kinds = world.random.sample(self._kinds, world.random.randint(1, len(self._kinds)))

    def step(self, task: Task, what: str) -> None:
        """Maybe now."""
        random = self._world.random
        if self.on and random.random() < self._chance:
            fault = random.choice(self._kinds)
            if fault == self.disconnect:
                self.disconnect(task, what)
            elif fault():
                self._world.injected[fault.__name__] += 1

    def _victim(self) -> Any:
        alive = self._world.alive()
        return self._world.random.choice(alive) if alive else None

    def crash(self) -> bool:
        """kill -9."""
        victim = self._victim()
        if victim is None:
            return False
        self._world.crash(victim, machine=False)
        self._start_later(victim.service)
        return True

    def lose_machine(self) -> bool:
        """A machine is gone with all its connections."""
        victim = self._victim()
        if victim is None:
            return False
        self._world.crash(victim, machine=True)
        self._start_later(victim.service)
        return True

    def _start_later(self, service: Any) -> None:
        world = self._world

        def again() -> None:
            if sum(not (i.process.frozen or i.process.cut) for i in world.alive(service)) < 2:
                world.start(service)

        world.scheduler.at(world.scheduler.now + world.random.random() * 3.0, again)

    def start(self) -> bool:
        """One more replica."""
        service = self._world.random.choice(self._world.services)
        if len(self._world.alive(service)) >= 3:
            return False
        self._world.start(service)
        return True

    def rebalance(self) -> bool:
        """Partitions move."""
        self._world.rebalance()
        return True

    def freeze(self) -> bool:
        """A process stands still, maybe for so long that it is a zombie when it goes on."""
        victim = self._victim()
        if victim is None or victim.process.frozen:
            return False
        self._world.freeze(victim, self._world.random.choice([0.5, 4.0, 7.0, 12.0, 25.0]))
        self._start_later(victim.service)
        return True

    def cut(self) -> bool:
        """A process loses Kafka only."""
        victim = self._victim()
        if victim is None or victim.process.cut:
            return False
        self._world.cut(victim, self._world.random.choice([1.0, 10.0, 20.0]))
        self._start_later(victim.service)
        return True

    def jump(self) -> bool:
        """A process's clock goes ahead."""
        victim = self._victim()
        if victim is None:
            return False
        self._world.scheduler.jump(victim.process, self._world.random.choice([0.1, 5.0, 60.0]))
        return True

    def jump_database(self) -> bool:
        """The database's clock goes ahead."""
        self._world.database.offset += self._world.random.choice([0.05, 1.0, 10.0])
        return True

    def _driver(self) -> Any:
        alive = [d for d in self._world.drivers if d.process.alive and d.process.tasks]
        return self._world.random.choice(alive) if alive else None

    def kill_driver(self) -> bool:
        """A driver's process ends."""
        driver = self._driver()
        if driver is None:
            return False
        driver.die("killed")
        return True

    def stall_driver(self) -> bool:
        """A driver stands still and goes on when it may have been given up."""
        driver = self._driver()
        if driver is None or driver.process.frozen:
            return False
        driver.process.frozen = True

        def thaw() -> None:
            driver.process.frozen = False

        self._world.scheduler.at(self._world.scheduler.now + self._world.random.choice([2.0, 10.0, 40.0]), thaw)
        return True

    def disconnect(self, task: Task, what: str) -> None:
        """A connection to Postgres breaks; of a commit nobody may know whether it landed."""
        mine = [tx for tx in self._world.database.open if tx.who == task.process.name]
        if what not in ("statement", "commit", "committed"):
            return
        self._world.injected[f"disconnect at {what}"] += 1
        if what != "committed":
            for tx in mine:
                if not tx.waits_for:
                    self._world.database.terminate(tx)
        raise errors.disconnected("server closed the connection unexpectedly")


class Scenario:
    """What clients do."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
        self.ids: list[str] = []
        self._pipelines = [f"p{n}" for n in range(self._random.choice([1, 1, 2]))]

    def decide_failures(self) -> None:
        """For which intervals the user's code fails."""
        days = [FIRST + timedelta(days=n) for n in range(8)]
        self._world.failing = {(p, day) for p in self._pipelines for day in days if self._random.random() < 0.15}

    def prepare(self) -> None:
        """Plan all of it, at random moments."""
        self.decide_failures()
        for name in self._pipelines:
            self._at(0.0, lambda name=name: self.apply(name))
        for _ in range(self._random.randint(1, 3)):
            moment = self._random.random() * self._random.choice([1.0, 12.0])
            self._at(moment, self.request)
            for _ in range(self._random.choice([0, 0, 1, 3])):
                self._at(moment + self._random.random() * 12.0, self.command)
        if self._random.random() < 0.3:
            self._at(self._random.random() * 10.0, self.apply)

    def _at(self, seconds: float, action: Any) -> None:
        self._world.scheduler.at(self._world.scheduler.now + seconds, action)

    def definition(self, name: str) -> PipelineDefinition:
        """A pipeline with deadlines of many kinds."""
        alerts = [
            alert("slow", "RUN_STARTED_AT", self._random.choice([0.5, 3.0, 20.0]), callback="page"),
            alert("late", "RUN_QUEUED_AT", self._random.choice([1.0, 6.0, 60.0]), fire_on_failure=True),
            alert("task", "TASK_STARTED_AT", 2.0, task="a", callback="page"),
            alert("many", "RUN_QUEUED_AT", self._random.choice([0.5, 5.0]), digest_seconds=2, callback="page"),
            alert("whole", "BACKFILL_REQUESTED_AT", self._random.choice([5.0, 30.0]), callback="page"),
        ]
        chosen = [alert("soon", "RUN_QUEUED_AT", 0.3, callback="page"), *self._random.sample(alerts, 1)]
        if WATCHER not in self._world.services:
            chosen = []
        tasks = self._random.choice([("a",), ("a", "b")])
        return daily(name, tasks, max_active_runs=self._random.choice([1, 2, 3]), deadlines=chosen)

    def apply(self, name: str | None = None) -> None:
        """Apply a pipeline, maybe on a partition where it does not belong."""
        name = name or self._random.choice(self._pipelines)
        wrong = self._random.random() < 0.2
        partition = self._random.randrange(self._world.partitions) if wrong else None
        self._world.publish(Topic.PIPELINES, name, PipelineApplied(pipeline=self.definition(name)), partition=partition)

    def request(self) -> None:
        """Request a backfill, maybe twice, maybe on a partition where it does not belong."""
        id = f"b{len(self.ids)}-{self._random.randint(0, 99)}"
        self.ids.append(id)
        first = FIRST + timedelta(days=self._random.randint(0, 3))
        last = first + timedelta(days=self._random.choice([0, 1, 2]))
        pipeline = self._random.choice(self._pipelines)
        request = BackfillRequested.model_validate(
            {
                "pipeline": pipeline,
                "from": first.date().isoformat(),
                "to": last.date().isoformat(),
                "max_active_runs": self._random.choice([None, 1, 2]),
                "reprocess_behavior": self._random.choice(["none", "failed", "completed"]),
                "on_run_failure": self._random.choice(["continue", "continue", "pause", "cancel"]),
                "run_backwards": self._random.random() < 0.3,
            }
        )
        wrong = self._random.random() < 0.15
        partition = self._random.randrange(self._world.partitions) if wrong else None
        times = 2 if self._random.random() < 0.2 else 1
        self._world.publish(Topic.BACKFILL_REQUESTS, id, request, partition=partition, times=times)

    def command(self) -> None:
        """Pause, resume or cancel a backfill, maybe twice, maybe one that is not there yet or any more."""
        id = self._random.choice(self.ids)
        command = self._random.choice([BackfillPauseRequested, BackfillResumeRequested, BackfillCancelRequested])
        self._world.publish(Topic.BACKFILL_REQUESTS, id, command(), times=self._random.choice([1, 1, 2]))

    def resume_all(self) -> None:
        """So that everything can end."""
        for row in self._world.database.rows("backfill"):
            if row["state"] == "paused":
                self._world.publish(Topic.BACKFILL_REQUESTS, row["id"], BackfillResumeRequested())


def run_schedule(seed: int) -> Result:
    """Run one schedule in ``shims.exchanged()``. Raises where something does not hold."""
    world = World(seed)
    try:
        return _run(world)
    finally:
        world.close()


def _run(world: World) -> Result:
    random, scheduler = world.random, world.scheduler
    scheduler.switch_chance = random.choice([0.05, 0.3, 0.6])
    world.duplicates = random.choice([0.0, 0.2])
    world.lost_notifications = random.choice([0.0, 0.3])
    world.lost_answers = random.choice([0.0, 0.2])
    world.late = random.choice([0.0, 0.15])
    world.failing_calls = random.choice([0.0, 0.4])
    faults = Faults(world, random.choice([0.0, 0.002, 0.005, 0.01]))
    scheduler.on_step = faults.step
    for service in world.services:
        for _ in range(random.choice([1, 1, 2])):
            world.start(service)
    scenario = Scenario(world)
    scenario.prepare()
    busy_until = scheduler.now + BUSY_SECONDS
    scheduler.run(lambda: scheduler.now >= busy_until)
    faults.on = False
    world.heal()
    end = scheduler.now + DRAIN_SECONDS
    run_until_drained(world, scenario, end)
    world.oracle.check_end()
    events = sum(len(ids) for ids in world.oracle.events.values())
    return Result(world.seed, scheduler.steps, world.database.statements, world.oracle.checked, events, world.injected)


def run_until_drained(world: World, scenario: Scenario, end: float) -> None:
    """Until nothing is left to do, resuming what is paused. Raises ``Stuck`` where there still is at ``end``."""
    while True:
        scenario.resume_all()
        _drain(world, end)
        if not any(row["state"] == "paused" for row in world.database.rows("backfill")):
            return


def _drain(world: World, end: float) -> None:
    scheduler = world.scheduler
    looked = [0]

    def over() -> bool:
        looked[0] += 1
        if looked[0] % 20:
            return False
        return scheduler.now >= end or world.oracle.drained()

    scheduler.run(over)
    if not world.oracle.drained():
        raise Stuck(f"it does not drain: {world.oracle.waiting()}")
