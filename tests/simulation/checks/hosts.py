"""Seats: each has one attempt of its pool at a time, and only its host launches that, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from run_starter.executors import LaunchRequest
from tests.simulation.checks.base import Check, Values, changed
from tests.simulation.memory.rows import Tx
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.world import World


class Hosts(Check):
    """An attempt has one seat while it is live, and nothing that never began counts."""

    name = "hosts"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # Where each attempt was launched.
        self._launched: dict[int, str] = {}
        # Attempts that a host took over. What is silent later may have begun.
        self._taken_over: set[int] = set()

    def committed(self, tx: Tx) -> None:
        """Check every change of a seat, and what became of the runs of attempts."""
        for step in tx.steps:
            if step.table == "seat" and step.before and step.after:
                self._changed(tx, step.before, step.after)
        for _, new in changed(tx, "attempt"):
            if new is not None:
                self._seated(new)
        for old, new in changed(tx, "run"):
            if old and new and new["lost_attempts"] > old["lost_attempts"]:
                self._counted(old)

    def _changed(self, tx: Tx, old: Values, new: Values) -> None:
        before, after = old["attempt_id"], new["attempt_id"]
        self.require(
            before is None or after in (None, before),
            lambda: f"{tx.who} gave the seat of attempt {before} to {after}: {new}",
        )
        if before is None and after is not None:
            attempt = self.row("attempt", "id", after)
            definition = self.row("backfill", "id", attempt["backfill_id"])["definition"]
            pool = self.row("host", "id", new["host_id"])["pool"]
            self.require(
                pool == definition["pool"], lambda: f"{tx.who} gave a seat of {pool} to {after} of {definition['pool']}"
            )
            # Of publishers too: all that is staged here are directories, which any process publishes.
            needs_none = definition.get("executor") == "spark-submit" or attempt["mode"] == "publish"
            self.require(old["warm"] or needs_none, lambda: f"{tx.who} gave a cold seat to {after}")
        if before is not None and after is None:
            state = self.row("attempt", "id", before)["state"]
            self.require(state == "ended", lambda: f"{tx.who} freed the seat of attempt {before}, which is {state}")
        if new["acknowledged_at"] is not None and old["acknowledged_at"] is None:
            self._taken_over.add(after)
            name = self.row("host", "id", new["host_id"])["name"]
            self.require(tx.who == name, lambda: f"{tx.who} acknowledged attempt {after} for {name}")

    def _seated(self, attempt: Values) -> None:
        """A live attempt has a seat, and one that ended has none."""
        seats = [seat["host_id"] for seat in self.rows("seat") if seat["attempt_id"] == attempt["id"]]
        expected = [] if attempt["state"] == "ended" else [attempt["host_id"]]
        self.require(seats == expected, lambda: f"{attempt} has a seat at {seats}")

    def _counted(self, run: Values) -> None:
        attempt = self.row("attempt", "id", run["attempt_id"])
        self.require(
            attempt["id"] in self._taken_over and attempt["outcome"] != "released",
            lambda: f"a loss counts for {run}, although nothing of it began: {attempt}",
        )

    def launched(self, process: Process, pool: str, launch: LaunchRequest) -> None:
        """A host hands an attempt to its drivers of a pool."""
        self.require(
            pool == launch.pipeline.pool,
            lambda: f"{process.name} launched {launch.key} of {launch.pipeline.pool} with drivers of {pool}",
        )
        attempt, before = self.row("attempt", "id", launch.key), self._launched.get(launch.key)
        self.require(before is None, lambda: f"attempt {launch.key} was launched at {before} and {process.name}")
        self._launched[launch.key] = process.name
        self.require(
            attempt["host"] == process.name, lambda: f"{process.name} launched an attempt of another host: {attempt}"
        )
        self.require(
            launch.key in self._taken_over, lambda: f"{process.name} launched what nobody acknowledged: {attempt}"
        )
