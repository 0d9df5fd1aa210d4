"""Two live attempts never write the same place without staging it."""

from __future__ import annotations

from tests.simulation.checks.base import Check, Values, changed
from tests.simulation.memory.rows import Tx


class Writing(Check):
    """Invariant 4, across pipelines, backfills, shards and pools."""

    name = "writing"

    def committed(self, tx: Tx) -> None:
        for old, new in changed(tx, "attempt"):
            if old is None and new is not None:
                self._claimed(new)

    def _claimed(self, attempt: Values) -> None:
        names = self._names(attempt)
        for other in self.rows("attempt") if names else ():
            if other["id"] != attempt["id"] and other["slot"] is not None:
                self._apart(attempt, other, names & self._names(other))

    def _apart(self, attempt: Values, other: Values, both: set[str]) -> None:
        self.require(not both, lambda: f"{attempt} and {other} write {both} at once")

    def _names(self, attempt: Values) -> set[str]:
        """What it writes. One that publishes or undoes only moves what was staged."""
        backfill = self.row("backfill", "id", attempt["backfill_id"])
        if attempt["mode"] == "publish" or backfill["undoes"] is not None:
            return set()
        definition = backfill["definition"]
        return {name for each in (definition, *definition["tasks"]) for name in each.get("writes") or ()}
