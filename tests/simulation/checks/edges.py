"""Guarded transitions: writes follow the edges of DESIGN.md, section 5; end states are final."""

from __future__ import annotations

from tests.simulation.checks.base import ENDED, Check, Values
from tests.simulation.memory.rows import Step, Tx

# Allowed initial states.
FIRST = {
    "backfill": {"running"},
    "run": {"queued"},
    "task_run": {"none"},
    "attempt": {"starting"},
    "deadline": {"armed", "void"},
    "callback": {"pending"},
}
# A failed callback runs again only after a replay, which no client of the simulation requests.
EDGES: dict[str, dict[str, set[str]]] = {
    "backfill": {
        "running": {"paused", "in_review", "cancelling", "succeeded", "failed"},
        "paused": {"running", "in_review", "cancelling", "succeeded", "failed"},
        "in_review": {"running", "cancelling"},
        "cancelling": {"cancelled", "failed"},
    },
    "run": {
        "queued": {"starting", "cancelled"},
        "starting": {"running", "succeeded", "failed", "queued", "cancelled"},
        "running": {"succeeded", "failed", "publishing", "staged", "queued", "cancelled"},
        "publishing": {"succeeded", "failed", "staged"},
        "staged": {"publishing", "cancelled"},
    },
    "attempt": {"starting": {"running", "ended"}, "running": {"ended"}},
    "task_run": {
        "none": {"queued", "skipped", "upstream_failed", "cancelled"},
        "queued": {"running", "skipped", "upstream_failed", "cancelled"},
        "running": {"succeeded", "failed", "retrying", "cancelled"},
        "retrying": {"running", "cancelled"},
    },
    "deadline": {"armed": {"missed", "met", "void"}},
    "callback": {"pending": {"running", "dropped"}, "running": {"succeeded", "failed", "pending"}},
}
# Columns that may change after the end: facts recorded later, and secrets that are erased.
AFTER_THE_END = {"recovered_at", "digest_id", "options", "superseded_by", "undone_by"}


class Edges(Check):
    """Checks every write, including several writes to one row in one transaction."""

    name = "edges"

    def committed(self, tx: Tx) -> None:
        for step in tx.steps:
            if step.table in EDGES:
                self._step(step)

    def _step(self, step: Step) -> None:
        name, old, new = step.table, step.before, step.after
        if new is None:
            self.violated(f"a {name} was deleted: {old}")
        elif old is None:
            self.require(new["state"] in FIRST[name], lambda: f"a {name} begins as {new['state']}: {new}")
        elif old["state"] in ENDED[name]:
            written = {c for c in old if old[c] != new[c]} - AFTER_THE_END
            self.require(not written, lambda: f"a {name} that ended was changed: {written} of {old}")
        elif old["state"] != new["state"]:
            allowed = new["state"] in EDGES[name].get(old["state"], ())
            self.require(allowed, lambda: f"{name}: {old['state']} → {new['state']} of {old}")
            if name == "run":
                self._attempt(old, new)
        elif name == "run":
            same = old["attempt"] == new["attempt"]
            self.require(same, lambda: f"the attempt of a run changed though it did not begin: {old} → {new}")

    def _attempt(self, old: Values, new: Values) -> None:
        expected = old["attempt"] + (new["state"] == "running")
        self.require(
            new["attempt"] == expected, lambda: f"run {old['state']} → {new['state']}: attempt of {old} → {new}"
        )
