"""A command is rejected only if it could not be carried out.

The planner commits the answers and the events of a backfill in one order, so the events before an answer
say in which state it was decided. Runs change beside it: their changes must have been committed before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from retrofill_core.contract.topics import Topic
from tests.chaos.history import History, Row
from tests.chaos.promises.backfills import ENDS
from tests.chaos.work import label

STATES = {
    "BackfillPlanned": "running",
    "BackfillResumed": "running",
    "BackfillPaused": "paused",
    "BackfillCancelling": "cancelling",
    **ENDS,
}
# States in which there is nothing left to do for a command. A cancel that is repeated is no mistake.
OVER = {"cancelling", "cancelled", "succeeded", "failed"}
OVER_FOR = {"BackfillCancelRequested": {"succeeded", "failed"}}
# States of a run that cannot be cancelled any more.
CLOSED = {"staged", "publishing", "succeeded", "failed", "cancelled"}


@dataclass
class Moment:
    """What was committed about a backfill when a command was decided."""

    id: str
    at: datetime | None = None
    state: str | None = None
    cancels: set[int] = field(default_factory=set)
    """Runs whose cancel was accepted."""


def rejections_are_due(history: History) -> Iterator[str]:
    """Each ``BackfillCommandRejected`` is about a command that a user sent, and that came too early, too late or
    for nothing.
    """
    sent = {(e.key, e.headers.get("ce_id")): e.body for e in history.of(Topic.BACKFILL_REQUESTS)}
    decided = {(row["backfill_id"], row["ce_id"]): row["decided_at"] for row in history.rows("backfill_command")}
    runs = Runs(history)
    for id, bodies in _told(history).items():
        now = Moment(id)
        for body in bodies:
            if body["type"] == "BackfillCommandRejected":
                place = (id, body.get("in_reply_to"))
                command, now.at = sent.get(place), decided.get(place)
                why = (
                    _undue(history, command, now, runs)
                    if command and now.at
                    else "nobody sent it, or it is not recorded"
                )
                if why is not None:
                    yield f"{body.get('command')} of {id} was rejected ({body.get('message')}) though {why}"
            elif body["type"] == "RunCancelAccepted":
                now.cancels.update(body["run_ids"])
            elif now.state is None or body["type"] != "BackfillPlanned":
                now.state = STATES.get(body["type"], now.state)


def _told(history: History) -> dict[str, list[Row]]:
    """The events of each backfill in their order, without answers to repeats of a command."""
    told: dict[str, list[Row]] = defaultdict(list)
    answered = set()
    for event in history.of(Topic.BACKFILL_EVENTS):
        place = (event.key, event.body.get("in_reply_to"))
        if place not in answered:
            told[event.key].append(event.body)
        if place[1] is not None:
            answered.add(place)
    return told


def _undue(history: History, command: Row, now: Moment, runs: Runs) -> str | None:
    """Why the rejection was wrong, or ``None``."""
    kind, wish = command["type"], history.wishes.get(now.id)
    if now.state is None or now.state in OVER_FOR.get(kind, OVER):
        return None
    if kind == "RunCancelRequested":
        return runs.that_could_be_cancelled(now, command["intervals"])
    if kind == "RunRetryRequested":
        return runs.that_had_failed(now)
    if kind == "BackfillResumeRequested":
        # A running one gets no other budget, and a paused one does not go on with one that is used up.
        budget = command.get("budget") is not None if now.state == "running" else wish is not None and wish.budgets
        return None if budget else f"it was {now.state}"
    return f"it was {now.state}"


class Runs:
    """The runs of a history, and when their states were committed."""

    def __init__(self, history: History) -> None:
        self._slack = history.clock_slack
        self._by_id = {row["id"]: row for row in history.rows("run")}
        self._of: dict[str, list[Row]] = defaultdict(list)
        for row in history.rows("run"):
            self._of[row["backfill_id"]].append(row)
        # By id: before it was closed, and after it had failed.
        self._closed: dict[str, datetime] = {}
        self._failed: dict[str, datetime] = {}
        self._read(history)

    def _read(self, history: History) -> None:
        backfill_of = {("run", str(row["id"])): row["backfill_id"] for row in history.rows("run")}
        backfill_of |= {("attempt", str(row["id"])): row["backfill_id"] for row in history.rows("attempt")}
        last: dict[str, list[Row]] = defaultdict(list)
        for change in history.changes:
            id = backfill_of.get((change["entity"], change["id"]))
            if id is None:
                continue
            # Transactions of a shard follow one another: as this one began, the one before was committed.
            if last[id] and last[id][0]["tx"] != change["tx"]:
                self._failed |= {each["id"]: change["began"] for each in last[id] if each["to"] == "failed"}
                last[id].clear()
            last[id].append(change)
            if change["entity"] == "run" and change["to"] in CLOSED:
                self._closed.setdefault(change["id"], change["at"])

    def that_could_be_cancelled(self, now: Moment, days: list[str]) -> str | None:
        """Says so if each of the days had a run that could be cancelled."""
        assert now.at is not None
        for day in days:
            mine = [run for run in self._of[now.id] if label(run["interval_start"]) == day]
            current = [run for run in mine if not self._replaced(run, now.at - self._slack)]
            closed = [run for run in current if self._before(self._closed.get(str(run["id"])), now.at + self._slack)]
            if not current or closed or any(run["id"] in now.cancels for run in current):
                return None
        return f"the runs of {', '.join(days)} could be cancelled" if days else None

    def that_had_failed(self, now: Moment) -> str | None:
        """Says so if a run had failed and was not replaced."""
        assert now.at is not None
        for run in self._of[now.id]:
            failed = self._before(self._failed.get(str(run["id"])), now.at - self._slack)
            if failed and not self._replaced(run, now.at + self._slack):
                return f"run {run['id']} had failed"
        return None

    def _replaced(self, run: Row, at: datetime) -> bool:
        new = self._by_id.get(run.get("superseded_by"))
        return new is not None and self._before(new["queued_at"], at)

    @staticmethod
    def _before(moment: datetime | None, at: datetime) -> bool:
        return moment is not None and moment <= at


PROMISES = (rejections_are_due,)
