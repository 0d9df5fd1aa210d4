"""Lost runs are retried alone, one at a time on a pool's Spark server, and only then do losses count."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from retrofill.states import AttemptMode
from tests.simulation.checks.base import ENDED, Check, Values
from tests.simulation.drivers import SERVER_LOST
from tests.simulation.memory.rows import Step, Tx

if TYPE_CHECKING:
    from tests.simulation.world import World


# Restated from the services, which leave a server to the backfill whose turn it is for so long.
TURN = timedelta(seconds=5)


class Suspects(Check):
    """Keeps its own list of suspects, from the ends of attempts."""

    name = "suspects"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.runs: set[int] = set()
        # Runs that were lost with a whole host or Spark server before.
        self.excused: set[int] = set()
        # Live attempts that execute suspects on the Spark server of a pool, with that pool.
        self.live: dict[int, str] = {}
        # By backfill with suspects that could start: since when, by the database's clock.
        self.able: dict[str, datetime] = {}

    def committed(self, tx: Tx) -> None:
        """Follow the changes of a transaction in their order."""
        ended = {s.after["id"]: s.after for s in tx.steps if s.table == "attempt" and s.after and s.after["ended_at"]}
        self.live = {id: pool for id, pool in self.live.items() if id not in ended}
        claimed: dict[int, list[Step]] = defaultdict(list)
        for step in tx.steps:
            if step.table != "run" or step.before is None or step.after is None:
                continue
            if step.before["state"] != step.after["state"] == "starting":
                claimed[step.after["attempt_id"]].append(step)
            else:
                self._left(step.before, step.after, ended.get(step.after["attempt_id"]))
        for attempt, steps in claimed.items():
            self._claimed(attempt, steps)
        alone = len(self.live) == len(set(self.live.values()))
        self.require(alone, lambda: f"attempts {self.live} retry suspects at once")
        for attempt in claimed.keys() & self.live.keys():
            self._in_turn(self.row("attempt", "id", attempt))
        able = {id for id in self._waiting() if self._has_slots(id)}
        self.able = {id: self.able.get(id, self.database.now()) for id in able}

    def _left(self, old: Values, new: Values, attempt: Values | None) -> None:
        """A run may have left ``attempt``, which has ended."""
        run, outcome = new["id"], attempt and attempt["outcome"]
        goes_on = new["state"] in ("queued", "staged") or (new["error"] or {}).get("type") == "DriverLost"
        is_lost = old["state"] in ("running", "publishing") and goes_on and outcome == "lost"
        is_split = new["range_limit"] != old["range_limit"] or (
            attempt is not None and attempt["mode"] == "range" and old["state"] == "running"
        )
        counts = is_lost and run in self.runs and not is_split
        self.require(
            new["lost_attempts"] == old["lost_attempts"] + counts,
            lambda: f"{'a' if counts else 'no'} loss counts, yet {old} became {new}",
        )
        most = self.world.settings.max_lost_attempts
        ends = new["lost_attempts"] >= most and old["state"] == "running"
        self.require(
            not is_lost or (new["state"] == "failed") == ends,
            lambda: f"{new} was lost {new['lost_attempts']} times, the limit is {most}",
        )
        if is_lost and not self._excused(old, new, attempt or {}):
            self.runs.add(run)
        elif new["state"] in ENDED["run"] or outcome == "failed":
            self.runs.discard(run)

    def _excused(self, old: Values, new: Values, attempt: Values) -> bool:
        """Whether it was lost with its host or its Spark server, for the first time."""
        loss = new["losses"]["last"][-1]
        shared = loss.get("shared", False)
        if loss["reason"] == SERVER_LOST:
            self.require(shared, lambda: f"{new} was lost with its server")
        elif shared:
            hosts = [row for row in self.rows("host") if row["id"] == attempt["host_id"]]
            half = self.database.now() + timedelta(seconds=attempt["lease_seconds"] / 2)
            self.require(
                all(row["lease_until"] <= half for row in hosts),
                lambda: f"{new} was not lost with its host, which is alive: {hosts}",
            )
        first = shared and old["id"] not in self.excused | self.runs
        if shared:
            self.excused.add(old["id"])
        self.require(
            (new["lost_at"] == old["lost_at"]) == first, lambda: f"{'no' if first else 'a'} suspect: {old} became {new}"
        )
        return first

    def _claimed(self, attempt: int, steps: list[Step]) -> None:
        """An attempt was given runs: suspects only alone, or together as a part of a lost range."""
        before = [step.before for step in steps if step.before is not None]
        if not self.runs & {row["id"] for row in before}:
            return
        backfill = self.row("backfill", "id", self.row("attempt", "id", attempt)["backfill_id"])
        if backfill["definition"]["executor"] == "pool":
            self.live[attempt] = backfill["definition"]["pool"]
        ranges = {row["attempt_id"] for row in before}
        alone = len(before) == 1
        if not alone and len(ranges) == 1 and {row["id"] for row in before} <= self.runs:
            alone = self.row("attempt", "id", ranges.pop())["mode"] == AttemptMode.RANGE
        self.require(alone, lambda: f"attempt {attempt} has suspects {self.runs} with other runs: {before}")

    def _in_turn(self, attempt: Values) -> None:
        """No other backfill waits whose last turn was earlier, unless it did not take the free server for a while."""
        id, server = attempt["backfill_id"], attempt["suspect_server"]
        turns = [row for row in self.rows("attempt") if row["suspect_server"] == server and row["id"] != attempt["id"]]
        last: dict[str, int] = {}
        for row in turns:
            last[row["backfill_id"]] = max(row["id"], last.get(row["backfill_id"], 0))
        ended = max((row["ended_at"] for row in turns), default=None)
        now = self.database.now()
        if ended is None or not now - TURN < ended <= now:
            return
        waiting = self._waiting() - {id}
        first = [
            other
            for other, since in self.able.items()
            if other in waiting and since < ended and last.get(other, 0) < last.get(id, 0)
            if self._server(other) == server
        ]
        self.require(not first, lambda: f"{attempt} was started, though it was the turn of {first}: {last}")

    def _server(self, id: str) -> str:
        return str(self.row("backfill", "id", id)["definition"]["pool"])

    def _waiting(self) -> set[str]:
        """Backfills with queued suspects that wait for a server."""
        if not self.runs:
            return set()
        found = {row["backfill_id"] for row in self.rows("run") if row["id"] in self.runs and row["state"] == "queued"}
        rows = [self.row("backfill", "id", id) for id in found]
        return {row["id"] for row in rows if row["state"] == "running" and row["definition"]["executor"] == "pool"}

    def _has_slots(self, id: str) -> bool:
        """Whether a backfill is below its limits, and no failure may hold it."""
        backfill = self.row("backfill", "id", id)
        pipeline = self.row("pipeline", "no", backfill["pipeline_no"])
        live = [row for row in self.rows("attempt") if row["ended_at"] is None]
        mine = sum(row["backfill_id"] == id for row in live)
        together = sum(row["pipeline_no"] == pipeline["no"] for row in live)
        holds = backfill["on_run_failure"] != "continue" and any(
            row["state"] == "failed" for row in self.rows("run") if row["backfill_id"] == id
        )
        return mine < backfill["max_active_runs"] and together < pipeline["max_active_runs"] and not holds
