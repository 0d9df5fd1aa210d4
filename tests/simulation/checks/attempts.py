"""Fenced attempts: only reports of the live attempt change a run, and attempts never overlap."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import datetime
from typing import TYPE_CHECKING

from retrofill.protocol.launch import LaunchedRun
from retrofill_core.contract.topics import Topic
from run_starter.executors import LaunchRequest
from tests.simulation.checks.base import LIVE, Check, Values, changed
from tests.simulation.checks.clock import ended_early
from tests.simulation.memory.rows import Tx
from tests.simulation.servers import LOST

if TYPE_CHECKING:
    from tests.simulation.bus.broker import Entry
    from tests.simulation.drivers import Driver
    from tests.simulation.world import World


# Errors that end an attempt because of one of its runs.
MARKS = ("RunTimedOut", "ReportRefused")


class Attempts(Check):
    """Invariant 7: only reports on the live attempt change a run, and attempts never overlap."""

    name = "attempts"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # (attempt, run, type or state) of each report on a run; run 0: on the attempt as a whole.
        self.said: Counter[tuple[int, int, str]] = Counter()
        # Offsets of each attempt's heartbeats, and their arrival times by the database clock.
        self.came: dict[int, list[tuple[int, int, datetime]]] = defaultdict(list)
        # Attempts lost because both the database's and the owner's clock jumped. Their drivers
        # cannot know.
        self.given_up_early: set[int] = set()
        # The attempt that executed a run as its n-th time, by run and n.
        self.executed: dict[tuple[int, int], int] = {}

    def appended(self, topic: str, partition: int, entry: Entry) -> None:
        """Record a report that reached Kafka."""
        if topic != Topic.RUN_REPORTS or entry.value is None or self.world.is_poison(entry):
            return
        if entry.value == LOST:
            headers = {name: (raw or b"").decode() for name, raw in entry.headers}
            _, attempt, *about = headers["ce_subject"].split("/")
            run = int(about[-1]) if about else 0
            self.said[int(attempt), run, "any"] += 1
            self.said[int(attempt), run, "dead"] += 1
            if headers["ce_type"] == "AttemptHeartbeat":
                self._beat(int(attempt), partition)
            return
        body = json.loads(entry.value)
        attempt, run = body["attempt_id"], body.get("run_id", 0)
        self.said[attempt, run, "any"] += 1
        self.said[attempt, run, body.get("state", body["type"])] += 1
        self.said[attempt, body.get("begun") or 0, "any"] += body["type"] == "AttemptEnded"
        if body["type"] == "AttemptHeartbeat":
            self._beat(attempt, partition)

    def _beat(self, attempt: int, partition: int) -> None:
        offset = self.world.broker.topics[str(Topic.RUN_REPORTS)][partition].high_watermark - 1
        self.came[attempt].append((partition, offset, self.database.now()))

    def committed(self, tx: Tx) -> None:
        """Check every change of a run or an attempt, statement by statement."""
        over = {s.after["id"] for s in tx.steps if s.table == "attempt" and s.after and s.after["state"] == "ended"}
        for step in tx.steps:
            old, new = step.before, step.after
            if old is None or new is None:
                continue
            if step.table == "run" and old["state"] != new["state"]:
                self._moved(old, new, over)
            if step.table == "attempt" and new["state"] == "ended" != old["state"]:
                self._ended(tx, old, new)
            if step.table == "run" and old["state"] in LIVE and new["state"] in ("queued", "staged"):
                self._released(old, new)
            if step.table == "run" and old["range_limit"] != new["range_limit"]:
                self._split(old, new)
            if step.table == "attempt" and old["spark_app_id"] != (app := new["spark_app_id"]):
                self.require(app == f"app-{new['id']}", lambda: f"attempt {new['id']} has the application {app}")
        for before, run in changed(tx, "run"):
            if run is not None and run["state"] in LIVE and before != run:
                attempt = self.row("attempt", "id", run["attempt_id"])
                mine = range(attempt["position"], attempt["position"] + attempt["runs"])
                self.require(
                    attempt["state"] != "ended" and run["position"] in mine,
                    lambda: f"{run} is live though its attempt is {attempt}",
                )

    def _moved(self, old: Values, new: Values, over: set[int]) -> None:
        """``over``: the attempts that the transaction ended. Their next run may have begun."""
        run, attempt, state = new["id"], new["attempt_id"], new["state"]
        if state == "running":
            self.require(
                self.said[attempt, run, "any"] > 0 or attempt in over,
                lambda: f"run {run} is running though nothing of attempt {attempt} was ever reported",
            )
        if state == "publishing" and old["state"] == "running":
            staged = self.said[attempt, run, "RunStaged"]
            self.require(staged > 0, lambda: f"run {run} is publishing though attempt {attempt} staged nothing")
            self.require(new["accepted_attempt"] == attempt, lambda: f"{new} was accepted of another attempt")
        unsaid = ("DriverLost", "RunTimedOut")
        if state == "succeeded" or (state == "failed" and (new["error"] or {}).get("type") not in unsaid):
            dead = (new["error"] or {}).get("type") == "ReportRefused"
            said = self.said[attempt, run, "dead" if dead else state]
            self.require(said > 0, lambda: f"run {run} {state} though attempt {attempt} did not say so")
        if old["state"] in LIVE and state == "cancelled":
            mine = self.row("attempt", "id", attempt)
            asked = mine["cancel_requested"] or (mine["release_requested"] and self.asked(run))
            self.require(asked, lambda: f"a live run was cancelled that nobody asked to: {old}")
        if (old["state"], state) == ("queued", "starting"):
            self.require(not self.asked(run), lambda: f"a run was started whose cancel was accepted: {old}")
        if old["state"] in ("publishing", "staged"):
            # ``Reviews`` judges when a staged run may be cancelled.
            allowed = (
                "publishing",
                "staged",
                "succeeded",
                "failed",
                *(["cancelled"] if old["state"] == "staged" else []),
            )
            self.require(state in allowed, lambda: f"an accepted run is {state}: {old}")

    def asked(self, run: int) -> bool:
        """Whether a user's request to cancel this run was accepted."""
        return any(row["run_id"] == run for row in self.rows("run_cancel"))

    def _released(self, old: Values, new: Values) -> None:
        """A run of an attempt that ended for the sake of others: nothing is held against it."""
        attempt = self.row("attempt", "id", old["attempt_id"])
        self.require(
            not attempt["release_requested"]
            or (attempt["outcome"] == "failed" and (attempt["error"] or {}).get("type") in MARKS)
            # The run for whose sake it was ended.
            or (old["error"] or {}).get("type") in MARKS
            or (new["lost_attempts"], new["range_limit"]) == (old["lost_attempts"], old["range_limit"]),
            lambda: f"a run pays for the end of {attempt}: {old} to {new}",
        )

    def _split(self, old: Values, new: Values) -> None:
        """A run may be part of smaller ranges only, because one of several runs did not succeed."""
        attempt = self.row("attempt", "id", old["attempt_id"])
        self.require(
            attempt["mode"] == "range"
            and (old["state"], new["state"]) == ("running", "queued")
            and new["range_limit"] == (attempt["runs"] // 2 if self._stays_in_ranges(attempt) else 1)
            and new["lost_attempts"] == old["lost_attempts"],
            lambda: f"the range {attempt} was split wrongly: {old} to {new}",
        )

    def _stays_in_ranges(self, attempt: Values) -> bool:
        """Whether the runs of a range that did not succeed are tried in smaller ones, not one by one."""
        return bool(attempt["runs"] > (3 if attempt["outcome"] == "lost" else 12))

    def _ended(self, tx: Tx, old: Values, new: Values) -> None:
        """An attempt ended.

        Without a report of its end, all heartbeats that arrived in time must have been read, and
        the driver must have stopped itself.
        """
        attempt = old["id"]
        if any(self.said[attempt, 0, state] for state in ("done", "failed", "lost", "released")):
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
        at_work = [d for d in self.world.at_work if d.launch.attempt_id == attempt and d.works()]
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
        """Whether the attempt has ended. This is permanent."""
        return bool(self.row("attempt", "id", launch.attempt_id)["state"] == "ended")

    def lease_that_ended(self, launch: LaunchRequest) -> datetime | None:
        """The end of the lease if it is over by the database clock, else ``None``."""
        until: datetime | None = self.row("attempt", "id", launch.attempt_id)["lease_until"]
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

    def began(self, driver: Driver, run: LaunchedRun, at_work: list[Driver]) -> None:
        """A driver starts user code: no other attempt may be at work on the run, or have its number."""
        attempt = driver.launch.attempt_id
        first = self.executed.setdefault((run.id, run.attempt), attempt)
        self.require(
            first == attempt, lambda: f"run {run.id} is executed as attempt {run.attempt} by {first} and {attempt}"
        )
        row = self.row("run", "id", run.id)
        # Those that it replaces are of the same interval.
        same = {
            each["id"]
            for each in self.rows("run")
            if (each["backfill_id"], each["position"]) == (row["backfill_id"], row["position"])
        }
        others = [d.launch.attempt_id for d in at_work if same & set(d.at_runs) and d.works()]
        others = [attempt for attempt in others if attempt not in self.given_up_early]
        self.require(not others, lambda: f"attempt {driver.launch.attempt_id} began run {run.id} beside {others}")
