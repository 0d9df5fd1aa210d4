"""Accepted output fails only because the table refuses it for ever, and publishers that could not publish pause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from retrofill.protocol.launch import LaunchedRun
from run_starter.executors import LaunchRequest
from tests.simulation.checks.base import Check, Values
from tests.simulation.memory.rows import Step, Tx

if TYPE_CHECKING:
    from tests.simulation.world import World

FIRST_PAUSE = timedelta(seconds=5)


class Publishing(Check):
    """Restates invariant 16, section 7 of DESIGN.md, without the table itself."""

    name = "publishing"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # By accepted attempt, of ranges: what its first publisher took for all of its runs.
        self._groups: dict[int, frozenset[int]] = {}

    def begins(self, launch: LaunchRequest, runs: Sequence[LaunchedRun]) -> None:
        """A publisher of a range's runs begins: all of them derive the same group, or a table could not fence them."""
        attempt = runs[0].accepted_attempt or launch.attempt_id
        if self.row("attempt", "id", attempt)["mode"] == "range":
            others = [run for run in launch.siblings if run.accepted_attempt == attempt]
            found = frozenset(run.id for run in (*runs, *others))
            first = self._groups.setdefault(attempt, found)
            self.require(first == found, lambda: f"attempt {attempt} has staged {set(first)}, then {set(found)}")

    def committed(self, tx: Tx) -> None:
        """Check the runs that leave a publisher or get one."""
        given: dict[int, list[Values]] = defaultdict(list)
        for step in tx.steps:
            if step.table == "run" and step.before is not None and step.after is not None:
                self._run(step, step.before, step.after)
                if (step.before["state"], step.after["state"]) == ("staged", "publishing"):
                    given[step.after["attempt_id"]].append(step.after)
        for publisher, runs in given.items():
            self._together(publisher, runs)

    def _together(self, publisher: int, runs: list[Values]) -> None:
        """A publisher of what several attempts have staged has none with which one was lost, nor other code than theirs."""
        attempts = {run["accepted_attempt"] for run in runs}
        if len(attempts) > 1:
            self.world.injected["a publisher of several attempts"] += 1
            lost = [run["id"] for run in runs if run["lost_at"] is not None]
            self.require(not lost, lambda: f"publisher {publisher} of {attempts} has {lost}, with which one was lost")
            codes = [self.row("attempt", "id", id)["code"] for id in (publisher, *attempts)]
            self.require(
                all(code == codes[0] for code in codes), lambda: f"publisher {publisher} has another code: {codes}"
            )
            self.require(len(runs) <= 100, lambda: f"publisher {publisher} has {len(runs)} runs of {attempts}")

    def _run(self, step: Step, old: Values, new: Values) -> None:
        before, after = old["state"], new["state"]
        if before in ("publishing", "staged") and after == "failed":
            why = (new["error"] or {}).get("type")
            refused = why == "TableRefuses" or (why == "PublishedAgain" and new["restores"] is not None)
            said = self.world.oracle.attempts.said[old["attempt_id"], new["id"], "failed"]
            self.require(
                refused and said > 0, lambda: f"accepted output fails though no table refused it: {old} to {new}"
            )
        if (before, after) == ("staged", "publishing"):
            at, now = old["publish_after"], self.database.now()
            self.require(at is None or at <= now, lambda: f"{old} has a publisher before its pause is over, at {now}")
        if (before, after) == ("publishing", "staged") and new["review"] == old["review"]:
            self._waits(old, new)

    def _waits(self, old: Values, new: Values) -> None:
        """Who could not publish says why, and the next one pauses, longer each time."""
        why, attempt = new["publish_error"], self.row("attempt", "id", old["attempt_id"])
        if attempt["state"] == "ended" and attempt["outcome"] != "lost":
            return
        put_off = attempt["state"] != "ended"
        counted = new["lost_attempts"] > old["lost_attempts"]
        self.require(why is not None, lambda: f"nobody says why {new} is not published, after {attempt}")
        pauses = new["publish_after"] is not None
        self.require(pauses == (put_off or counted), lambda: f"{new} pauses, or does not, after {attempt}")
        if pauses:
            pause, least = new["publish_after"] - self.database.now(), FIRST_PAUSE * 2 ** min(new["publication"], 6)
            # The clock may have been set since the decision.
            self.require(put_off or pause > least / 2, lambda: f"{new} pauses for {pause} only after {attempt}")
