"""One schedule: a random scenario with faults, then a heal, a drain and the final checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any

from retrofill.sdk.names import MAX_BATCH
from retrofill_core.contract.backfills import (
    BackfillDiscardRequested,
    BackfillPublishRequested,
    BackfillRequested,
    BackfillResumeRequested,
    BackfillUndoRequested,
)
from retrofill_core.contract.pipelines import PipelineApplied
from retrofill_core.contract.topics import WATCHER, Topic
from retrofill_core.domain.backfill import Budget
from retrofill_core.domain.pipeline import PipelineDefinition
from tests.simulation.checks.base import ENDED, REST
from tests.simulation.commands import Commands
from tests.simulation.faults import Faults
from tests.simulation.hanging import KINDS, limited
from tests.simulation.memory.rows import Tx
from tests.simulation.scheduler import Stuck
from tests.simulation.world import World
from tests.support.definitions import alert, daily

FIRST = datetime(2020, 1, 1, tzinfo=UTC)
DRAIN_SECONDS = 900.0
# Planned faults fall within this time, in which most of a small schedule happens.
PLANNED_SECONDS = 10.0


@dataclass(frozen=True)
class Result:
    """Counters of one schedule."""

    seed: int
    steps: int
    statements: int
    commits: int
    events: int
    runs: int
    injected: Counter[str]


class Scenario:
    """What clients do during a schedule."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
        self.ids: list[str] = []
        self._commands = Commands(world, self._at)
        # Planned client actions that have not happened yet.
        self.left = 0
        self.busy_seconds = self._random.choice(world.size.busy_seconds)
        # Pipelines that get some long backfills.
        self._long: set[str] = set()
        # By pipeline: what has a time limit.
        self._limits: dict[str, str | None] = {}
        # The backfill of which another one is a repetition, by its id.
        self._repeats: dict[str, str] = {}
        # Chosen apart, so that a seed's other choices stay.
        self._writes = Random(f"writes of {world.seed}")
        self._pipelines = [f"p{n}" for n in range(self._random.choice(world.size.pipelines))]

    def decide_failures(self) -> None:
        """Choose the intervals whose user code fails, or ends the Spark server."""
        days = [FIRST + timedelta(days=n) for n in range(8)]
        self._world.failing = {(p, day) for p in self._pipelines for day in days if self._random.random() < 0.15}
        if self._random.random() < 0.1:
            self._world.killing = {(self._random.choice(self._pipelines), self._random.choice(days[:4]))}
        if self._random.random() < 0.2:
            self._world.refusing = {(p, day) for p in self._pipelines for day in days if self._random.random() < 0.2}
        self._world.put_off = self._random.choice([0.0, 0.0, 0.3])
        self._limits = {p: self._random.choice(KINDS) for p in self._pipelines}
        limited = [p for p, kind in self._limits.items() if kind]
        self._world.hanging = {(p, day) for p in limited for day in days[:4] if self._random.random() < 0.3}

    def prepare(self) -> None:
        """Plan all client actions at random times."""
        self.decide_failures()
        self._commands.watch()
        self._world.database.on_commit.append(self._see_ends)
        for name in self._pipelines:
            self._at(0.0, lambda name=name: self.apply(name))
        size, busy = self._world.size, self.busy_seconds
        for _ in range(self._random.choice(size.backfills)):
            moment = self._random.random() * self._random.choice(size.within_seconds)
            self._at(moment, self.request)
            for _ in range(self._random.choice(size.commands)):
                self._at(moment + self._random.random() * 0.6 * busy, self.command)
        if self._random.random() < size.applied_again:
            self._at(self._random.random() * 0.5 * busy, self.apply)

    def _at(self, seconds: float, action: Any) -> None:
        self.left += 1

        def act() -> None:
            self.left -= 1
            action()

        self._world.scheduler.at(self._world.scheduler.now + seconds, act)

    def definition(self, name: str) -> PipelineDefinition:
        """A pipeline with random limits, tasks and deadline alerts."""
        alerts = [
            alert("slow", "RUN_STARTED_AT", self._random.choice([0.5, 3.0, 20.0]), callback="page"),
            alert("late", "RUN_QUEUED_AT", self._random.choice([1.0, 6.0, 60.0]), fire_on_failure=True),
            alert("task", "TASK_STARTED_AT", 2.0, task="a", callback="page"),
            alert("many", "RUN_QUEUED_AT", self._random.choice([0.5, 5.0]), digest_seconds=2, callback="page"),
            alert("whole", "BACKFILL_REQUESTED_AT", self._random.choice([5.0, 30.0]), callback="page"),
        ]
        alerts.append(alert("soon", "RUN_QUEUED_AT", 0.3, callback="page"))
        alerts.append(alert("past", "LOGICAL_DATE", 60.0, fire_if_past=self._random.random() < 0.5, callback="page"))
        chosen = self._random.sample(alerts, self._world.size.alerts)
        if WATCHER not in self._world.services:
            chosen = []
        tasks = ("a", "b")[: self._random.choice(self._world.size.tasks)]
        made = daily(
            name,
            tasks,
            # Some are applied again with another one.
            schedule=self._random.choice(["@daily", "0 */12 * * *"]),
            max_active_runs=self._random.choice([1, 2, 3]),
            **self._batches(name),
            batch_mode=self._random.choice(["each", "range"]),
            executor=self._random.choice(["pool", "pool", "spark-submit"]),
            pool=self._world.pools.of_pipeline(),
            writes=self._writes.choice([(), (), ("orders",), ("stock", "orders"), ("stock",)]),
            deadlines=chosen,
            **(self._listed() if WATCHER in self._world.services else {}),
        )
        return limited(made, self._limits.get(name), self._random)

    def _listed(self) -> dict[str, Any]:
        """What is called for failed runs, alone or together, and for ends."""
        windows = self._random.choice([(), (0.0,), (2.0,), (2.0,), (0.0, 2.0)])
        people = {"kind": "webhook", "receiver": "people", "body": "slack"}
        who = self._random.choice(["page", people])
        ends = self._random.choice([[], [who], [who, "page"]])
        return {
            "on_run_failed": [{"callback": who, "digest_seconds": seconds} for seconds in windows],
            "on_backfill_succeeded": [{"callback": name} for name in ends[:1]],
            "on_backfill_failed": [{"callback": name} for name in ends],
        }

    def _batches(self, name: str) -> dict[str, Any]:
        """Some batches have a chosen size. It grows only if a backfill has many runs."""
        if self._random.random() >= 0.2:
            return {"batch_size": self._random.choice([1, 1, 2, 3, 5])}
        self._long.add(name)
        return {"batch_size": MAX_BATCH, "batch_target_seconds": self._random.choice([1.0, 30.0, 600.0])}

    def apply(self, name: str | None = None) -> None:
        """Apply a pipeline, sometimes on the wrong partition."""
        name = name or self._random.choice(self._pipelines)
        wrong = self._random.random() < 0.2
        partition = self._random.randrange(self._world.partitions) if wrong else None
        self._world.publish(Topic.PIPELINES, name, PipelineApplied(pipeline=self.definition(name)), partition=partition)

    def _see_ends(self, tx: Tx) -> None:
        """Undo some backfills that have ended, or think that they have; request others again, perhaps by another schedule."""
        for table, old, new in tx.changes:
            if table not in ("backfill", "run") or not old or not new:
                continue
            if old["state"] == new["state"] or new["state"] not in ENDED[table]:
                continue
            if table == "run" and new["published"] is not None and self._random.random() < 0.02:
                self._at(self._random.random(), partial(self._undo, new["backfill_id"]))
            if table == "backfill" and new["undoes"] is None:
                what = self._random.random()
                if what < 0.15:
                    self._at(self._random.random() * 3.0, partial(self._undo, new["id"]))
                # Of what may have been published again.
                if what < 0.5 and (earlier := self._repeats.get(new["id"])):
                    self._at(self._random.random(), partial(self._undo, earlier))
                if not 0.05 < what < 0.9:
                    self._at(self._random.random() * 6.0, partial(self._again, new))

    def _undo(self, id: str) -> None:
        self.ids.append(f"u{len(self.ids)}-{id}")
        undo = BackfillUndoRequested.model_validate(
            {
                "undoes": id,
                "from": self._random.choice([None, None, "2020-01-02"]),
                "publish": self._random.choice(["at_once", "at_once", "review"]),
            }
        )
        self._world.publish(Topic.BACKFILL_REQUESTS, self.ids[-1], undo, times=self._random.choice([1, 1, 2]))

    def _again(self, backfill: Mapping[str, Any]) -> None:
        if self._random.random() < 0.5:
            self.apply(backfill["pipeline"])
        repeated = self.request(backfill["pipeline"], sorted(self._world.requested[backfill["id"]]))
        self._repeats[repeated] = backfill["id"]

    def request(self, pipeline: str | None = None, again: Sequence[datetime] = ()) -> str:
        """Request a backfill, sometimes twice or on the wrong partition. Returns its id. ``again``: of these dates."""
        id = f"b{len(self.ids)}-{self._random.randint(0, 99)}"
        self.ids.append(id)
        first = FIRST + timedelta(days=self._random.randint(0, 3))
        pipeline = pipeline or self._random.choice(self._pipelines)
        days = self._random.choice(self._world.size.days)
        if pipeline in self._long and self._random.random() < 0.5:
            days += 7
        dates = [first + timedelta(days=n) for n in range(days)]
        asked: dict[str, Any] = {"from": dates[0].date().isoformat(), "to": dates[-1].date().isoformat()}
        if again or self._random.random() < 0.3:
            # With gaps.
            dates = [*again] or self._random.sample([FIRST + timedelta(days=n) for n in range(days + 3)], days)
            asked = {"intervals": [each.date().isoformat() for each in dates]}
        self._world.requested[id] = set(dates)
        request = BackfillRequested.model_validate(
            {
                "pipeline": pipeline,
                **asked,
                "max_active_runs": self._random.choice([None, 1, 2]),
                "batch_size": self._random.choice([None, None, None, 2]),
                "reprocess_behavior": self._random.choice(["none", "failed", "completed"]),
                "on_run_failure": self._random.choice(["continue", "continue", "pause", "cancel"]),
                "run_backwards": self._random.random() < 0.3,
                "budget": self._commands.budget(),
                "publish": self._random.choice(["at_once", "at_once", "review"]),
            }
        )
        wrong = self._random.random() < 0.15
        partition = self._random.randrange(self._world.partitions) if wrong else None
        times = 2 if self._random.random() < 0.2 else 1
        self._world.publish(Topic.BACKFILL_REQUESTS, id, request, partition=partition, times=times)
        return id

    def command(self) -> None:
        """Command one of the backfills."""
        self._commands.command(self.ids)

    def go_on(self) -> None:
        """Resume all paused backfills without a budget, and end all reviews, so that everything can end.

        The first resume keeps the budget, so it is refused if that is used up.
        """
        for row in self._world.database.rows("backfill"):
            if row["state"] == "paused":
                for budget in (None, Budget()):
                    self._world.publish(Topic.BACKFILL_REQUESTS, row["id"], BackfillResumeRequested(budget=budget))
            elif row["state"] == "in_review":
                ends = self._random.choice([BackfillPublishRequested(), BackfillDiscardRequested()])
                self._world.publish(Topic.BACKFILL_REQUESTS, row["id"], ends)


def run_schedule(seed: int) -> Result:
    """Run one schedule. Call it inside ``shims.exchanged()``. Raises if a check fails."""
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
    world.slow = random.choice([0.0, 0.0, 0.5])
    world.failing_calls = random.choice([0.0, 0.4])
    world.leases = random.choice([world.leases, world.size.lease_seconds])
    faults = Faults(world, random.choice(world.size.chances))
    scheduler.on_step = faults.step
    world.pools.choose()
    for service in world.services:
        for _ in range(random.choice(world.size.replicas)):
            world.start(service)
    scenario = Scenario(world)
    scenario.prepare()
    faults.plan(min(scenario.busy_seconds, PLANNED_SECONDS))
    busy_until = scheduler.now + scenario.busy_seconds
    scheduler.run(_seldom(lambda: scheduler.now >= busy_until or _is_over(world, scenario)))
    faults.on = False
    world.heal()
    end = scheduler.now + DRAIN_SECONDS
    run_until_drained(world, scenario, end)
    world.oracle.check_end()
    return Result(
        seed=world.seed,
        steps=scheduler.steps,
        statements=world.database.statements,
        commits=world.oracle.checked,
        events=world.oracle.events,
        runs=len(world.database.rows("run")),
        injected=world.injected,
    )


def _is_over(world: World, scenario: Scenario) -> bool:
    """Whether no client action is left, no process is disturbed and everything is drained."""
    to_come = scenario.left or world.waiting_for_kafka or world.is_disturbed()
    return not to_come and world.oracle.drained()


def run_until(world: World, over: Callable[[], bool], seconds: float = DRAIN_SECONDS) -> None:
    """Run until ``over``, which must be within so many seconds."""
    end = world.scheduler.now + seconds
    world.scheduler.run(lambda: over() or world.scheduler.now >= end)
    assert over()


def run_until_drained(world: World, scenario: Scenario, end: float) -> None:
    """Run until all work is done, resuming paused backfills and ending reviews.

    Raises ``Stuck`` if work is left at ``end``.
    """
    while True:
        scenario.go_on()
        _drain(world, scenario, end)
        if not any(row["state"] in REST for row in world.database.rows("backfill")):
            return


def _drain(world: World, scenario: Scenario, end: float) -> None:
    def drained() -> bool:
        return not scenario.left and not world.waiting_for_kafka and world.oracle.drained()

    scheduler = world.scheduler
    scheduler.run(_seldom(lambda: scheduler.now >= end or drained()))
    if not drained():
        raise Stuck(f"it does not drain: {world.oracle.waiting.what()}")


def _seldom(over: Callable[[], bool]) -> Callable[[], bool]:
    """Evaluate ``over`` on every 20th call only: it takes longer than a step."""
    asked = 0

    def ask() -> bool:
        nonlocal asked
        asked += 1
        return asked % 20 == 0 and over()

    return ask
