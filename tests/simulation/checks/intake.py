"""Atomic intake, one outcome per id, and no overlap."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

from retrofill.contract.topics import Topic
from tests.simulation.checks.base import ACTIVE, UNFINISHED, Check, Values, changed
from tests.simulation.memory.rows import Tx

OUTBOX = "backfill_planner_outbox"
OUTCOMES = ("BackfillPlanned", "BackfillRejected")


class Intake(Check):
    """Invariants 1, 2 and 3."""

    name = "intake"

    def committed(self, tx: Tx) -> None:
        """All rows of a backfill commit together, or none."""
        new = [after for before, after in changed(tx, "backfill") if before is None and after is not None]
        runs = Counter(
            after["backfill_id"] for before, after in changed(tx, "run") if before is None and after is not None
        )
        strangers = runs.keys() - {backfill["id"] for backfill in new}
        self.require(not strangers, lambda: f"runs of {strangers} came without their backfill")
        for backfill in new:
            self._whole(tx, backfill, runs[backfill["id"]])
        if new:
            self._no_overlap()

    def _whole(self, tx: Tx, backfill: Values, runs: int) -> None:
        id = backfill["id"]
        self.require(
            0 < runs == backfill["runs"], lambda: f"backfill {id} came with {runs} of its {backfill['runs']} runs"
        )
        intervals = [after for _, after in changed(tx, "backfill_interval") if after and after["backfill_id"] == id]
        covered = sum((each["interval_end"] - each["interval_start"] for each in intervals), start=_nothing(backfill))
        whole = backfill["covers"].upper - backfill["covers"].lower
        self.require(covered == whole, lambda: f"backfill {id} came with intervals of {covered}, it covers {whole}")
        fields = [after for _, after in changed(tx, OUTBOX) if after and after["key"] == id.encode()]
        planned = [row for row in fields if dict(row["headers"]).get("ce_type", "").endswith("BackfillPlanned")]
        self.require(
            bool(planned), lambda: f"backfill {id} came without its event: {[dict(row['headers']) for row in fields]}"
        )

    def _no_overlap(self) -> None:
        active = [row for row in self.rows("backfill") if row["state"] in ACTIVE]
        for n, one in enumerate(active):
            for other in active[n + 1 :]:
                clash = one["pipeline_no"] == other["pipeline_no"] and one["covers"].overlaps(other["covers"])
                self.require(not clash, lambda: f"two active backfills overlap: {one['id']} and {other['id']}")
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


def _nothing(backfill: Values) -> Any:
    return backfill["covers"].lower - backfill["covers"].lower
