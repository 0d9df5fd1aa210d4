"""A callback is claimed by one runner, called in its order, and never again after it succeeded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callback_runner.call import LEASE_SECONDS
from callback_runner.record import Claim
from tests.simulation.checks.base import Check, Values, changed
from tests.simulation.checks.clock import ended_early
from tests.simulation.memory.rows import Tx

if TYPE_CHECKING:
    from tests.simulation.world import World


class Callbacks(Check):
    """Invariant 11."""

    name = "callbacks"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.claimed_by: dict[str, str] = {}
        # Claims that ended early because the database clock jumped. Their runners cannot know.
        self.ended_early: set[str] = set()
        # Receivers that are known to be down: the number of the outage, and when that was committed.
        self.down: dict[str, tuple[int, float]] = {}
        self.outages = 0
        # Claims that began while that was known, by token.
        self.under_outage: dict[str, int] = {}

    def committed(self, tx: Tx) -> None:
        """Check every change of a claim."""
        for old, new in changed(tx, "callback"):
            if new is not None and new["token"] is not None and (old is None or old["token"] != new["token"]):
                self.claimed_by[new["token"]] = tx.who
                if new["kind"] != "function" and new["name"] in self.down and self.down[new["name"]][1] < tx.began:
                    self.under_outage[new["token"]] = self.down[new["name"]][0]
            if old is not None and old["token"] is not None and (new is None or new["token"] != old["token"]):
                self._claim_ended(tx, old, new)

        for old, new in changed(tx, "receiver"):
            if old is None and new is not None:
                self.outages += 1
                self.down[new["name"]] = (self.outages, self.world.scheduler.now)
            elif new is None and old is not None:
                del self.down[old["name"]]

    def _claim_ended(self, tx: Tx, old: Values, new: Values | None) -> None:
        """A claim may be ended by its runner, or by any runner once its lease is over."""
        owner = self.claimed_by[old["token"]]
        over = old["lease_until"] <= self.database.now()
        self.require(tx.who == owner or over, lambda: f"{tx.who} ended the claim of {owner}: {old} → {new}")
        if tx.who != owner and ended_early(self.database, old["lease_until"], LEASE_SECONDS):
            self.ended_early.add(old["token"])

    def called(self, claim: Claim) -> None:
        """The target received a call."""
        done, calls = self.world.calls_done[claim.deadline_id], self.world.calls[claim.deadline_id]
        row = self.row("callback", "deadline_id", claim.deadline_id)
        self.require(
            row["state"] != "succeeded", lambda: f"called again after it was recorded as done ({done} times): {row}"
        )
        if claim.token not in self.ended_early:
            self.require(
                row["token"] == claim.token, lambda: f"called under the token {claim.token}, the claim is {row}"
            )
            others = self._of_one_order(row)
            # Windows of failed runs are ended by what is no failed run.
            waits = [each for each in others if not (each["collects"] and row["occasion"] == "run_failed")]
            first = [each for each in waits if each["state"] == "pending" and _is_newer(row, each)]
            first += [each for each in others if each["state"] == "running"]
            self.require(not first, lambda: f"called before others of its order: {row}, {first}")
        self._probes(claim, row)
        most = self.world.settings.callback_max_attempts
        self.require(calls <= most or claim.has_receiver, lambda: f"called {calls} times, at most {most}: {row}")

    def _probes(self, claim: Claim, row: Values) -> None:
        """A receiver that is known to be down gets one call at a time."""
        outage = self.under_outage.get(claim.token)
        if outage is None or claim.token in self.ended_early or self.down.get(claim.name, (0,))[0] != outage:
            return
        probe = self.row("receiver", "name", claim.name)["probe_id"]
        self.require(probe == claim.deadline_id, lambda: f"called though {probe} probes its receiver: {row}")
        others = [
            each
            for each in self.rows("callback")
            if each["token"] not in (None, claim.token) and self.under_outage.get(each["token"]) == outage
        ]
        self.require(
            all(each["lease_until"] <= self.database.now() for each in others),
            lambda: f"two calls probe one receiver: {row}, {others}",
        )

    def _of_one_order(self, row: Values) -> list[Values]:
        """The other callbacks of its receiver about its backfill."""
        about = self._about(row)
        return [
            other
            for other in self.rows("callback")
            if about is not None and other["deadline_id"] != row["deadline_id"] and self._about(other) == about
        ]

    def _about(self, row: Values) -> tuple[str, ...] | None:
        """The receiver and the backfill; ``None`` for a run's deadline, a task's or a digest."""
        backfill = row["backfill_id"]
        if backfill is None:
            missed = self.row("deadline", "id", row["deadline_id"])
            backfill = missed["backfill_id"] if missed["run_id"] is None and missed["digest_id"] is None else None
        return None if backfill is None else (row["kind"], row["name"], backfill)

    def at_the_end(self) -> None:
        """Every callback recorded as succeeded was really called, and none that was dropped."""
        for row in self.rows("callback"):
            done = self.world.calls_done[row["deadline_id"]]
            self.require(row["state"] != "succeeded" or done >= 1, lambda: f"not called: {row}")
            if row["state"] == "dropped":
                self._dropped(row)

    def _dropped(self, row: Values) -> None:
        """All of its runs were retried, or people read of something newer about the backfill."""
        self.require(not self.world.calls[row["deadline_id"]], lambda: f"dropped after a call: {row}")
        newer = [other for other in self._of_one_order(row) if _is_newer(other, row)]
        told = bool(newer) and row["options"].get("body") in ("slack", "teams", "pagerduty")
        self.require(told or not row["event"], lambda: f"dropped, and nothing newer was told: {row}")


def _is_newer(one: Values, other: Values) -> bool:
    return (one["made_at"], one["deadline_id"]) > (other["made_at"], other["deadline_id"])
