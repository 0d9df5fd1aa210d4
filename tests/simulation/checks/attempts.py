"""Fenced attempts: only reports of the live attempt change a run, and attempts never overlap."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import datetime
from typing import TYPE_CHECKING

from retrofill.contract.topics import Topic
from run_starter.executors import LaunchRequest
from tests.simulation.checks.base import LIVE, Check, Values, changed
from tests.simulation.checks.clock import ended_early
from tests.simulation.memory.rows import Tx

if TYPE_CHECKING:
    from tests.simulation.bus.broker import Entry
    from tests.simulation.drivers import Driver
    from tests.simulation.world import World

Attempt = tuple[int, int]


class Attempts(Check):
    """Invariant 7."""

    name = "attempts"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.said: Counter[tuple[int, int, str]] = (
            Counter()
        )  # (run, attempt, reported type) sent by a driver or its host
        # Reports of attempts that go on.
        self.alive: Counter[Attempt] = Counter()
        # Offsets of each attempt's heartbeats, and their arrival times by the database clock.
        self.came: dict[Attempt, list[tuple[int, int, datetime]]] = defaultdict(list)
        # Attempts lost because both the database's and the owner's clock jumped. Their drivers
        # cannot know.
        self.given_up_early: set[Attempt] = set()

    def appended(self, topic: str, partition: int, entry: Entry) -> None:
        """Record a report that reached Kafka."""
        if topic != Topic.RUN_REPORTS or entry.value is None or self.world.is_poison(entry):
            return
        body = json.loads(entry.value)
        if body["type"] == "RunReported":
            self.said[body["run_id"], body["attempt"], body["state"]] += 1
        elif body["type"] == "RunStaged":
            self.said[body["run_id"], body["attempt"], "staged"] += 1
        elif body["type"] == "TaskReported":
            self.alive[body["run_id"], body["attempt"]] += 1
        elif body["type"] == "RunHeartbeat":
            self.alive[body["run_id"], body["attempt"]] += 1
            offset = self.world.broker.topics[topic][partition].high_watermark - 1
            self.came[body["run_id"], body["attempt"]].append((partition, offset, self.database.now()))

    def committed(self, tx: Tx) -> None:
        """Check every change of a run."""
        for old, new in changed(tx, "run"):
            if old is not None and new is not None and old["state"] != new["state"]:
                self._moved(tx, old, new)

    def _moved(self, tx: Tx, old: Values, new: Values) -> None:
        run, attempt, state = new["id"], new["attempt"], new["state"]
        if state == "running":
            reported = self.alive[run, attempt] + sum(self.said[run, attempt, s] for s in ("succeeded", "failed"))
            self.require(
                reported > 0, lambda: f"run {run} is running though no driver of attempt {attempt} ever reported"
            )
        if state == "publishing":
            staged = self.said[run, attempt, "staged"]
            self.require(staged > 0, lambda: f"run {run} is publishing though attempt {attempt} staged nothing")
        if state == "succeeded" or (state == "failed" and (new["error"] or {}).get("type") != "DriverLost"):
            said = self.said[run, attempt, state]
            self.require(said > 0, lambda: f"run {run} {state} though no driver of attempt {attempt} said so")
        if old["lease_until"] is not None and state in ("queued", "cancelled"):
            self._given_up(tx, old)
        if old["state"] in LIVE and state == "cancelled":
            # One transaction may queue a lost run again and cancel it with its backfill.
            asked = old["cancel_requested"] or self.row("backfill", "id", new["backfill_id"])["state"] == "cancelling"
            self.require(asked, lambda: f"a live run was cancelled that nobody asked to: {old}")

    def _given_up(self, tx: Tx, old: Values) -> None:
        """An attempt was lost without a report of its end.

        All heartbeats that arrived in time must have been read, and the driver must have stopped
        itself.
        """
        attempt = old["id"], old["attempt"]
        if any(self.said[*attempt, state] for state in ("lost", "released", "cancelled")):
            return
        stored = {
            r["partition"]: r["next_offset"]
            for r in self.rows("run_starter_shard_offset")
            if r["topic"] == Topic.RUN_REPORTS
        }
        unread = [came for came in self.came[attempt] if came[1] >= stored[came[0]] and came[2] <= old["lease_until"]]
        self.require(not unread, lambda: f"{old} was given up with heartbeats unread: {unread}")
        self.require(old["lease_until"] <= self.database.now(), lambda: f"{old} was given up before its lease ended")
        if self._both_clocks_jumped(tx, old):
            self.given_up_early.add(attempt)
            return
        at_work = [d for d in self.world.at_work if (d.launch.run_id, d.launch.attempt) == attempt and d.works()]
        self.require(
            not at_work, lambda: f"{old} was given up while its driver worked, until {[d.alive_until for d in at_work]}"
        )

    def _both_clocks_jumped(self, tx: Tx, old: Values) -> bool:
        """Whether the lease ended only because both the database's and the owner's clock jumped."""
        scheduler, seconds = self.world.scheduler, old["lease_seconds"]
        owner = next(process for process in scheduler.processes if process.name == tx.who)
        jumped = owner.jumped_at > scheduler.now - seconds
        return jumped and ended_early(self.database, old["lease_until"], seconds)

    def is_over(self, launch: LaunchRequest) -> bool:
        """Whether the attempt has ended or was replaced by a newer one. This is permanent."""
        row = self.row("run", "id", launch.run_id)
        return bool(row["attempt"] != launch.attempt or row["state"] not in LIVE)

    def lease_that_ended(self, launch: LaunchRequest) -> datetime | None:
        """The end of the lease if it is over by the database clock, else ``None``."""
        until: datetime | None = self.row("run", "id", launch.run_id)["lease_until"]
        return until if until is not None and until <= self.database.now() else None

    def answered(self, launch: LaunchRequest, what: str, *, over: bool, ended: datetime | None, answer: bool) -> None:
        """A host answered its driver.

        ``over`` and ``ended`` say whether the attempt, or its lease, was over when the question was
        asked.
        """
        if what == "may_begin" and ended is not None:
            # A heartbeat may have extended the lease meanwhile.
            over = over or self.lease_that_ended(launch) == ended
        self.require(not (over and answer), lambda: f"{what} of {launch.key} was answered with yes though it was over")

    def began(self, driver: Driver, at_work: list[Driver]) -> None:
        """A driver starts user code: no other attempt of the run may be at work."""
        run = driver.launch.run_id
        others = [d.launch.attempt for d in at_work if d.launch.run_id == run and d.works()]
        others = [attempt for attempt in others if (run, attempt) not in self.given_up_early]
        self.require(not others, lambda: f"attempt {driver.launch.attempt} of run {run} began beside {others}")
