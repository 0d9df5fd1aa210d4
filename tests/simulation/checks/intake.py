"""Atomic intake, one outcome per id, no overlap, and retries of active backfills only."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from retrofill_core.contract.topics import Topic
from tests.simulation.checks.base import ACTIVE, UNFINISHED, Check, Values, changed, inserted
from tests.simulation.memory.rows import Tx

if TYPE_CHECKING:
    from tests.simulation.world import World

OUTBOX = "backfill_planner_outbox"
OUTCOMES = ("BackfillPlanned", "BackfillRejected")


class Intake(Check):
    """Invariants 1, 2 and 3."""

    name = "intake"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # Runs that replaced others.
        self.retries: set[int] = set()

    def committed(self, tx: Tx) -> None:
        """All rows of a backfill commit together, or none."""
        new, runs_added = inserted(tx, "backfill"), inserted(tx, "run")
        retried = {
            after["superseded_by"]: after
            for before, after in changed(tx, "run")
            if after and _is_superseded(before, after)
        }
        for run in runs_added:
            if run["id"] in retried:
                self._replaces(run, retried.pop(run["id"]))
        self.require(not retried, lambda: f"runs were superseded by none: {retried}")
        runs = Counter(run["backfill_id"] for run in runs_added if run["id"] not in self.retries)
        strangers = runs.keys() - {backfill["id"] for backfill in new}
        self.require(not strangers, lambda: f"runs of {strangers} came without their backfill")
        for backfill in new:
            self._whole(tx, backfill, runs[backfill["id"]])
        if new or runs_added:
            self._no_overlap()
        for _, after in changed(tx, OUTBOX):
            if after is not None and dict(after["headers"]).get("ce_type", "").endswith("BackfillRejected"):
                self._refused(json.loads(after["value"]))

    def _replaces(self, run: Values, old: Values) -> None:
        """A retry replaces a failed run of an active backfill by one of the same interval."""
        self.retries.add(run["id"])
        same = ("backfill_id", "pipeline_no", "interval_start", "interval_end", "position")
        self.require(
            all(run[name] == old[name] for name in same) and old["state"] == "failed",
            lambda: f"{old} was replaced by {run}",
        )
        backfill = self.row("backfill", "id", run["backfill_id"])
        self.require(backfill["state"] in ("running", "paused"), lambda: f"{run} was retried in {backfill}")

    def _refused(self, answer: Values) -> None:
        """A request is refused only for the sake of a backfill with one of its intervals."""
        wanted = self.world.requested.get(answer["backfill_id"])
        if answer["reason"] != "overlap" or wanted is None:
            return
        other = answer["conflicting_backfill_id"]
        taken = {each["interval_start"] for each in self.rows("backfill_interval") if each["backfill_id"] == other}
        self.require(bool(wanted & taken), lambda: f"refused for the sake of {taken}, but wants {wanted}: {answer}")

    def _whole(self, tx: Tx, backfill: Values, runs: int) -> None:
        id = backfill["id"]
        self.require(
            0 < runs == backfill["runs"], lambda: f"backfill {id} came with {runs} of its {backfill['runs']} runs"
        )
        intervals = [after for _, after in changed(tx, "backfill_interval") if after and after["backfill_id"] == id]
        covered = sum((each["interval_end"] - each["interval_start"] for each in intervals), start=timedelta())
        parts = backfill["covers_parts"] or [backfill["covers"]]
        whole = sum((part.upper - part.lower for part in parts), start=timedelta())
        self.require(covered == whole, lambda: f"backfill {id} came with intervals of {covered}, it covers {whole}")
        fields = [after for _, after in changed(tx, OUTBOX) if after and after["key"] == id.encode()]
        planned = [row for row in fields if dict(row["headers"]).get("ce_type", "").endswith("BackfillPlanned")]
        self.require(
            bool(planned), lambda: f"backfill {id} came without its event: {[dict(row['headers']) for row in fields]}"
        )

    def _no_overlap(self) -> None:
        active = [row for row in self.rows("backfill") if row["state"] in ACTIVE]
        pipelines = {row["id"]: row["pipeline_no"] for row in active}
        taken = Counter(
            (pipelines[each["backfill_id"]], each["interval_start"])
            for each in self.rows("backfill_interval")
            if each["backfill_id"] in pipelines
        )
        twice = [interval for interval, number in taken.items() if number > 1]
        self.require(not twice, lambda: f"active backfills overlap in {twice}: {[row['id'] for row in active]}")
        unfinished = Counter(
            (run["pipeline_no"], run["interval_start"]) for run in self.rows("run") if run["state"] in UNFINISHED
        )
        self.require(all(n == 1 for n in unfinished.values()), lambda: "an interval has two unfinished runs")

    def at_the_end(self) -> None:
        """Each id has one outcome, which is ``BackfillPlanned`` exactly if a row exists."""
        said: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for _, _, entry in self.world.broker.read(str(Topic.BACKFILL_EVENTS)):
            body = self.world.body(entry)
            if body.get("type") in OUTCOMES:
                said[body["backfill_id"]].append(body)
        planned = {row["id"] for row in self.rows("backfill")}
        for id, bodies in said.items():
            outcomes = {json.dumps({k: v for k, v in b.items() if k != "in_reply_to"}, sort_keys=True) for b in bodies}
            self.require(len(outcomes) == 1, lambda: f"request {id} has several outcomes: {outcomes}")
            self.require((bodies[0]["type"] == OUTCOMES[0]) == (id in planned), lambda: f"{id} was told {bodies[0]}")
        self.require(planned <= said.keys(), lambda: f"nobody was told of {planned - said.keys()}")


def _is_superseded(before: Values | None, after: Values | None) -> bool:
    return before is not None and after is not None and before["superseded_by"] != after["superseded_by"]
