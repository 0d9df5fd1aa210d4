"""Runs and tasks that exceed their time limits: interrupted in time, not too early, and failed once."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from retrofill_core.contract.topics import Topic
from tests.simulation.checks.base import Check, Values
from tests.simulation.memory.rows import Step, Tx
from tests.simulation.servers import LOST

if TYPE_CHECKING:
    from tests.simulation.bus.broker import Entry
    from tests.simulation.world import World

# How long a run may go on after its time, once the faults are over: until its driver was ended, or
# its lease has ended, and that was read.
SLACK_SECONDS = 60.0


@dataclass(frozen=True)
class Limit:
    """When an execution must be over, by the database's clock and in true time."""

    at: datetime
    true: float


class Timeouts(Check):
    """Knows of every execution when it began, and computes its end for itself."""

    name = "timeouts"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.limits: dict[int, Limit] = {}
        # By attempt and run: where and when reports of its output or end arrived.
        self.ends: dict[tuple[int, int], list[tuple[int, int, datetime]]] = defaultdict(list)
        # By run and task: the tries that ended their drivers.
        self.tries: dict[tuple[int, str], list[int]] = defaultdict(list)
        world.broker.on_append.append(self._appended)

    def _appended(self, topic: str, partition: int, entry: Entry) -> None:
        if topic != Topic.RUN_REPORTS or entry.value is None or self.world.is_poison(entry):
            return
        if entry.value == LOST:
            return
        body = json.loads(entry.value)
        if body["type"] in ("RunStaged", "RunReported"):
            offset = self.world.broker.topics[topic][partition].high_watermark - 1
            self.ends[body["attempt_id"], body["run_id"]].append((partition, offset, self.database.now()))
        if body["type"] == "TaskReported" and (body.get("error") or {}).get("type") == "TaskTimedOut":
            tries = self.tries[body["run_id"], body["task"]]
            # One that was not recorded, because its attempt was over, is made again.
            if body["try_number"] not in tries:
                tries.append(body["try_number"])
                self.require(len(tries) == body["try_number"], lambda: f"the tries {tries} of {body} have a gap")

    def committed(self, tx: Tx) -> None:
        """Follow the runs of a transaction, and look for one that goes on for too long."""
        over = {s.after["id"] for s in tx.steps if s.table == "attempt" and s.after and s.after["state"] == "ended"}
        for step in tx.steps:
            if step.table == "run" and step.before is not None and step.after is not None:
                self._step(step, step.before, step.after, over)
        healed = self.world.healed_at
        now = self.world.scheduler.now
        slack = SLACK_SECONDS + 2 * max(self.world.leases)
        for run, limit in self.limits.items():
            late = healed is not None and now > max(limit.true, healed) + slack
            self.require(not late, lambda run=run, limit=limit: f"run {run} goes on at {now}, limit {limit}")  # type: ignore[misc]

    def _step(self, step: Step, old: Values, new: Values, over: set[int]) -> None:
        if (old["state"], new["state"]) == ("starting", "running"):
            self._begins(old, new)
        elif old["state"] == new["state"] == "running" and (new["error"] or {}).get("type") == "RunTimedOut":
            self._marked(new)
        elif old["state"] == "running" != new["state"]:
            self._left(old, new, over)
        self.require(
            (new["error"] or {}).get("type") != "RunTimedOut" or new["state"] != "queued",
            lambda: f"a run that timed out is queued as such: {new}",
        )

    def _begins(self, old: Values, new: Values) -> None:
        attempt = self.row("attempt", "id", new["attempt_id"])
        definition: dict[str, Any] = self.row("backfill", "id", new["backfill_id"])["definition"]
        if (seconds := definition.get("run_timeout_seconds")) is not None:
            seconds *= attempt["runs"] if attempt["mode"] == "range" else 1
            # The decision was made at the first of these moments, and committed by the second.
            began, now = old["started_at"] or new["started_at"], self.database.now()
            if old["started_at"] is not None:
                began = now - timedelta(seconds=SLACK_SECONDS)
            at, length = new["times_out_at"], timedelta(seconds=seconds)
            self.require(
                at is not None and began + length <= at <= now + length,
                lambda: f"its limit is {seconds} s, yet it began between {began} and {now}: {new}",
            )
            self.limits[new["id"]] = Limit(at or now, self.world.scheduler.now + seconds)

    def _marked(self, new: Values) -> None:
        """Its driver is to be ended: it is late, and nothing that arrived in time is unread."""
        run, limit = new["id"], self.limits.get(new["id"])
        late = limit is not None and limit.at <= self.database.now()
        self.require(late, lambda: f"run {run} is interrupted early, limit {limit}: {new}")
        stored = {
            row["partition"]: row["next_offset"]
            for row in self.rows("run_starter_shard_offset")
            if row["topic"] == Topic.RUN_REPORTS
        }
        came = self.ends[new["attempt_id"], run]
        unread = [each for each in came if each[1] >= stored[each[0]] and limit is not None and each[2] < limit.at]
        self.require(not unread, lambda: f"run {run} is interrupted though its end came in time: {unread}")

    def _left(self, old: Values, new: Values, over: set[int]) -> None:
        """It is no longer executed. If it was interrupted, it fails, unless its end came first."""
        run, state, interrupted = new["id"], new["state"], old["error"] is not None
        self.limits.pop(run, None)
        failed = state == "failed" and (new["error"] or {}).get("type") == "RunTimedOut"
        self.require(not failed or interrupted, lambda: f"run {run} failed as one that nobody interrupted: {new}")
        if failed:
            self.require(old["attempt_id"] in over, lambda: f"run {run} failed before its attempt ended: {new}")
        split = state == "queued" and new["range_limit"] != old["range_limit"]
        alone = self.row("attempt", "id", old["attempt_id"])["mode"] == "each"
        self.require(
            not interrupted or state != "queued" or (split and not alone),
            lambda: f"a run that was interrupted is executed again: {old} to {new}",
        )
