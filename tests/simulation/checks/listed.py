"""A pipeline's callbacks are called once: for each failed run and each end, for each place of its list."""

from __future__ import annotations

from collections import Counter
from typing import Any

from callback_runner.record import Claim
from tests.simulation.checks.base import Check, Values, changed
from tests.simulation.memory.rows import Tx

ENDS = {"succeeded": "backfill_succeeded", "failed": "backfill_failed"}


class Listed(Check):
    """Invariant 10, for callbacks without a deadline: a fact and its callbacks are one commit."""

    name = "listed callbacks"

    def committed(self, tx: Tx) -> None:
        """Compare the facts of a transaction with the rows that it inserts."""
        facts: Counter[Any] = Counter()
        for old, new in changed(tx, "run"):
            if new is not None and new["state"] == "failed" and (old is None or old["state"] != "failed"):
                facts.update((new["id"], place) for place, _ in self._listed(new["backfill_id"], "run_failed"))
        for old, new in changed(tx, "backfill"):
            if old is not None and new is not None and new["state"] in ENDS and old["state"] != new["state"]:
                if new["undoes"] is not None and new["state"] == "succeeded":
                    continue  # the data that was announced is gone
                occasion = ENDS[new["state"]]
                facts.update((new["id"], place, occasion, name) for place, name in self._listed(new["id"], occasion))
        rows = [(name, new) for name, old, new in tx.changes if old is None and new is not None]
        there: Counter[Any] = Counter((row["run_id"], row["place"]) for name, row in rows if name == "callback_run")
        there.update(
            (row["backfill_id"], row["place"], row["occasion"], row["name"])
            for name, row in rows
            if name == "callback" and row["occasion"] not in (None, "run_failed")
        )
        self.require(facts == there, lambda: f"what happened: {dict(facts)}, what is to be called: {dict(there)}")

    def _listed(self, backfill_id: str, occasion: str) -> list[tuple[int, str]]:
        """Places and functions of a list, as the backfill was planned."""
        rules = self.row("backfill", "id", backfill_id)["definition"].get(f"on_{occasion}", ())
        calls = (rule["callback"] for rule in rules)
        return [
            (place, call.get("name") or call.get("url") or f"receiver:{call['receiver']}")
            for place, call in enumerate(calls)
        ]

    def called(self, claim: Claim) -> None:
        """A target is told of what happened, and of no less."""
        if claim.occasion == "run_failed":
            told = {each["run_id"] for each in claim.event["failed"]}
            self._all_but_retried(told, claim.deadline_id)

    def _all_but_retried(self, told: set[int], callback_id: int) -> None:
        """What failed and was retried before the first call is not told."""
        runs = self._runs(callback_id)
        untold = [self.row("run", "id", id) for id in runs - told]
        well = told <= runs and all(row["superseded_by"] is not None for row in untold)
        self.require(well, lambda: f"callback {callback_id} told of {told}, but {runs} joined: {untold}")

    def _runs(self, callback_id: int) -> set[int]:
        return {row["run_id"] for row in self.rows("callback_run") if row["callback_id"] == callback_id}

    def at_the_end(self) -> None:
        """Each was told of all its failures: none joined after the first call."""
        for callback in self.rows("callback"):
            if callback["occasion"] == "run_failed":
                self._told_of_all(callback)

    def _told_of_all(self, callback: Values) -> None:
        runs = self._runs(callback["deadline_id"])
        told = {each["run_id"] for each in callback["event"].get("failed", ())}
        self.require(bool(runs), lambda: f"a callback about nothing: {callback}")
        self._all_but_retried(told, callback["deadline_id"])
        self.require(bool(told) or callback["state"] == "dropped", lambda: f"called for nothing: {callback}")
        count, collects = callback["event"].get("count", 0), callback["collects"]
        self.require(count == len(told) and not collects, lambda: f"told of {told}: {callback}")
