"""Deadlines are armed and decided correctly, by the database clock while their runs were locked.

Restates the rules of DESIGN.md, section 8, independently of the services' code.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

from retrofill_core.contract.topics import WATCHER, Topic
from tests.simulation.checks.base import ACTIVE, ENDED, Check, Values
from tests.simulation.memory.rows import Step, Tx

# The table and column with the time that an alert counts from.
REFERENCES = {
    "RUN_QUEUED_AT": ("run", "queued_at"),
    "RUN_STARTED_AT": ("run", "started_at"),
    "LOGICAL_DATE": ("run", "interval_start"),
    "BACKFILL_REQUESTED_AT": ("backfill", "requested_at"),
}
ENDS = {"run": "finished_at", "backfill": "ended_at"}


class Deadlines(Check):
    """Invariant 10."""

    name = "deadlines"

    def committed(self, tx: Tx) -> None:
        """Check end times, newly armed deadlines and decided deadlines."""
        for step in tx.steps:
            if step.table in ENDS and step.after is not None:
                self._dated(step, step.after)
            elif step.table == "deadline" and step.after is not None:
                if step.before is None:
                    self._armed(tx, step.after)
                elif step.before["state"] == "armed" and step.after["state"] != "armed":
                    self._judged(tx, step.after)

    def _dated(self, step: Step, new: Values) -> None:
        """An end time must be read under the row lock, which deciding a deadline also takes."""
        column = ENDS[step.table]
        if new[column] is not None and (step.before is None or step.before[column] is None):
            honest = step.locked_at <= new[column] <= step.written_at
            self.require(honest, lambda: f"the end of {new} was not read under its lock, had since {step.locked_at}")

    def _armed(self, tx: Tx, new: Values) -> None:
        backfill = self.row("backfill", "id", new["backfill_id"])
        alert = next(each for each in backfill["definition"]["deadlines"] if each["name"] == new["alert"])
        after = timedelta(seconds=alert["interval_seconds"])
        if (counts_from := REFERENCES.get(alert["reference"])) is not None:
            table, column = counts_from
            about = backfill if table == "backfill" else self.row("run", "id", new["run_id"])
            self.require(new["due_at"] == about[column] + after, lambda: f"armed for a wrong moment: {new} of {about}")
        else:
            within = tx.began_at + after <= new["due_at"] <= self.database.now() + after
            self.require(within, lambda: f"armed for a wrong moment: {new}")
        if new["due_at"] > self.database.now() or alert["fire_if_past"]:
            self.require(new["state"] == "armed", lambda: f"not armed: {new} by {alert}")
        elif new["due_at"] <= tx.began_at:
            self.require(new["state"] == "void", lambda: f"armed though its moment was past: {new} by {alert}")

    def _judged(self, tx: Tx, new: Values) -> None:
        how, ended_at = self._end_of(new)
        expected = "missed"
        if ended_at is not None and ended_at <= new["due_at"]:
            if how == "succeeded":
                expected = "met"
            elif how == "skipped" or not new["fire_on_failure"] or self._is_superseded(new):
                expected = "void"
        self.require(
            new["state"] == expected, lambda: f"{new['state']} instead of {expected}, {how} at {ended_at}: {new}"
        )
        honest = tx.began_at <= new["decided_at"] <= self.database.now()
        self.require(honest, lambda: f"decided at a moment that was none of its transaction's: {new}")
        if new["state"] == "missed":
            self.require(new["decided_at"] >= new["due_at"], lambda: f"missed before its moment: {new}")

    def _is_superseded(self, deadline: Values) -> bool:
        """Whether its run was retried, as another run with deadlines of its own."""
        id = deadline["run_id"]
        return id is not None and self.row("run", "id", id)["superseded_by"] is not None

    def _end_of(self, deadline: Values) -> tuple[str | None, datetime | None]:
        """State and end time of the deadline's subject, as the watcher sees it under its lock."""
        if deadline["run_id"] is None:
            backfill = self.row("backfill", "id", deadline["backfill_id"])
            if backfill["staged_at"] is not None and backfill["state"] in ACTIVE - {"cancelling"} | {"succeeded"}:
                return "succeeded", backfill["staged_at"]
            return (backfill["state"], backfill["ended_at"]) if backfill["ended_at"] is not None else (None, None)
        run = self.row("run", "id", deadline["run_id"])
        if deadline["task"] is not None and (ended := self._end_of_task(run, deadline["task"])) is not None:
            return ended
        if deadline["task"] is None and run["staged_at"] and run["state"] in ("staged", "publishing", "succeeded"):
            # A review takes its time.
            return "succeeded", run["staged_at"]
        return (run["state"], run["finished_at"]) if run["state"] in ENDED["run"] else (None, None)

    def _end_of_task(self, run: Values, task: str) -> tuple[str, datetime] | None:
        """The first success of any attempt, or another end of the newest attempt only."""
        tries = [t for t in self.rows("task_run") if t["run_id"] == run["id"] and t["task"] == task]
        done = [t["finished_at"] for t in tries if t["state"] == "succeeded"]
        if done:
            return "succeeded", min(done)
        newest = max(tries, key=lambda t: t["attempt"])
        how = {"failed": "failed", "upstream_failed": "failed", "skipped": "skipped"}.get(newest["state"])
        return (how, newest["finished_at"]) if how and newest["attempt"] == run["attempt"] else None

    def at_the_end(self) -> None:
        """Every deadline exists, none is overdue, and each miss was published and called once."""
        if WATCHER not in self.world.services:
            return
        self._each_is_there()
        fields = self._fields_of()
        callbacks = {c["deadline_id"] for c in self.rows("callback")}
        for deadline in self.rows("deadline"):
            id, missed = deadline["id"], deadline["state"] == "missed"
            self.require(fields[id] == missed, lambda: f"{deadline['state']} and told {fields[id]} times: {deadline}")
            calls = missed and deadline["callback"] is not None and deadline["digest_id"] in (None, id)
            self.require((id in callbacks) == calls, lambda: f"callback {id in callbacks}: {deadline}")
            if deadline["state"] == "armed":
                self.require(deadline["due_at"] > self.database.now(), lambda: f"overdue: {deadline}")
                self.require(not self._is_superseded(deadline), lambda: f"armed though its run was retried: {deadline}")

    def _fields_of(self) -> Counter[int]:
        fields: Counter[int] = Counter()
        for _, _, entry in self.world.broker.read(str(Topic.DEADLINE_MISSED)):
            body = self.world.body(entry)
            if body.get("type") == "DeadlineMissed":
                fields[body["deadline_id"]] += 1
            elif body.get("type") == "DeadlinesMissed":
                fields.update(each["deadline_id"] for each in body["missed"])
        return fields

    def _each_is_there(self) -> None:
        there = {(d["backfill_id"], d["run_id"], d["alert"]) for d in self.rows("deadline")}
        alerts = {b["id"]: b["definition"]["deadlines"] for b in self.rows("backfill")}
        wanted = {
            (id, None, alert["name"])
            for id, given in alerts.items()
            for alert in given
            if alert["reference"] == "BACKFILL_REQUESTED_AT"
        }
        for run in self.rows("run"):
            for alert in alerts[run["backfill_id"]]:
                table, column = REFERENCES.get(alert["reference"], ("", ""))
                if table == "run" and run[column] is not None:
                    wanted.add((run["backfill_id"], run["id"], alert["name"]))
        self.require(wanted <= there, lambda: f"no deadline was made for {wanted - there}")
