"""What must hold: looked at after every commit, and once more when the faults are over and everything has drained."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from callback_runner.claims import Claim
from retrofill.bus.topics import SERVICES, WATCHER, Topic
from retrofill.domain import backfill as backfill_domain
from retrofill.domain import callback as callback_domain
from retrofill.domain import deadline as deadline_domain
from retrofill.domain import run as run_domain
from retrofill.domain import task_run as task_run_domain
from retrofill.domain.run import LIVE, UNFINISHED
from run_starter.executors import Launch
from tests.simulation.memory.rows import Tx

if TYPE_CHECKING:
    from tests.simulation.bus.broker import Entry
    from tests.simulation.drivers import Driver
    from tests.simulation.world import World

Values = dict[str, Any]
Place = tuple[str, bytes | None, str | None]
MACHINES = {
    "backfill": backfill_domain.MACHINE,
    "run": run_domain.MACHINE,
    "task_run": task_run_domain.MACHINE,
    "deadline": deadline_domain.MACHINE,
    "callback": callback_domain.MACHINE,
}
OUTBOXES = {f"{service.package}_outbox": service for service in SERVICES.values()}
OFFSETS = {f"{service.package}_shard_offset": service for service in SERVICES.values()}


class Violation(AssertionError):
    """An invariant does not hold."""


class Oracle:
    """Follows the commits of one schedule."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._database = world.database
        # By topic, key and source (two services promise no order): ce_ids as their transactions committed.
        self.events: dict[Place, list[str]] = defaultdict(list)
        self.said: Counter[tuple[int, int, str]] = Counter()  # run, attempt, what a driver (or its host) reported
        self.beats: Counter[tuple[int, int]] = Counter()
        # By run and attempt: where its heartbeats are, and when they came by the database's clock.
        self.came: dict[tuple[int, int], list[tuple[int, int, datetime]]] = defaultdict(list)
        self.claimed_by: dict[str, str] = {}
        self.checked = 0
        world.database.on_commit.append(self.committed)
        world.broker.on_append.append(self._appended)

    # as it goes

    def committed(self, tx: Tx) -> None:
        """A transaction has committed."""
        self.checked += 1
        names = {name for name, _, _ in tx.changes}
        for name, old, new in tx.changes:
            if name in MACHINES:
                self._edge(name, old, new)
            if name == "run":
                self._run(old, new)
            elif name == "deadline" and new is not None and new["state"] == "missed":
                self._missed(old, new)
            elif name == "callback":
                self._callback(tx, old, new)
            elif name in OFFSETS and old is not None and new is not None:
                taken = new["taken_offset"] != old["taken_offset"] and new["next_offset"] == old["next_offset"]
                self._require(taken or new["next_offset"] > old["next_offset"], f"an offset went back: {old} → {new}")
        if "run" in names:
            self._limits(tx)
        self._owner(tx, names)
        rows = [new for name, old, new in tx.changes if name in OUTBOXES and old is None and new is not None]
        for row in sorted(rows, key=lambda row: row["id"]):
            headers = dict(row["headers"])
            self.events[row["topic"], row["key"], headers.get("ce_source")].append(headers.get("ce_id", ""))

    def _require(self, holds: bool, what: str) -> None:
        # Not raised here: this may be inside of a service, which would handle it as its own failure.
        if not holds and self._world.scheduler.failure is None:
            self._world.scheduler.failure = Violation(what)

    def _edge(self, name: str, old: Values | None, new: Values | None) -> None:
        if old is None or new is None or old["state"] == new["state"]:
            if old is not None and old["state"] in MACHINES[name].terminal:
                known = {"recovered_at", "digest_id", "options"}
                changed = {c for c in old if new is None or old[c] != new[c]} - known
                self._require(not changed, f"a {name} that ended was changed: {changed} of {old}")
            return
        # One transaction may take several steps.
        allowed = new["state"] in _reachable(name, old["state"])
        self._require(allowed, f"{name}: {old['state']} → {new['state']} of {old}")

    def _run(self, old: Values | None, new: Values | None) -> None:
        self._require(new is not None, "a run was deleted")
        assert new is not None
        if old is None:
            return
        run, attempt = new["id"], new["attempt"]
        self._require(attempt >= old["attempt"], f"run {run}: attempt {old['attempt']} → {attempt}")
        if old["state"] == new["state"]:
            return
        if new["state"] == "running":
            self._require(
                self.beats[run, attempt] + sum(self.said[run, attempt, s] for s in ("succeeded", "failed")) > 0,
                f"run {run} is running though no driver of attempt {attempt} ever reported",
            )
        if new["state"] == "succeeded" or (
            new["state"] == "failed" and (new["error"] or {}).get("type") != "DriverLost"
        ):
            said = self.said[run, attempt, new["state"]]
            self._require(said > 0, f"run {run} {new['state']} though no driver of attempt {attempt} said so")
        if old["lease_until"] is not None and new["state"] in ("queued", "cancelled"):
            self._check_lost(old)
        if new["state"] == "starting":
            self._require(old["state"] == "queued" and attempt == old["attempt"] + 1, f"a claim of {old}")

    def _check_lost(self, old: Values) -> None:
        """An attempt that nobody reported as ended was given up: all heartbeats that came in time had been read."""
        attempt = old["id"], old["attempt"]
        if any(self.said[*attempt, state] for state in ("lost", "released", "cancelled")):
            return
        stored = {
            r["partition"]: r["next_offset"]
            for r in self._database.rows("run_starter_shard_offset")
            if r["topic"] == Topic.RUN_REPORTS
        }
        unread = [came for came in self.came[attempt] if came[1] >= stored[came[0]] and came[2] <= old["lease_until"]]
        self._require(not unread, f"{old} was given up with heartbeats unread: {unread}")

    def _limits(self, tx: Tx) -> None:
        runs = self._database.rows("run")
        # A limit that was lowered counts for later claims, not for what else happens to runs that are starting.
        claimed = [
            new
            for name, old, new in tx.changes
            if name == "run" and old and new and old["state"] == "queued" and new["state"] == "starting"
        ]
        for run in claimed:
            limit = next(b["max_active_runs"] for b in self._database.rows("backfill") if b["id"] == run["backfill_id"])
            live = [r for r in runs if r["backfill_id"] == run["backfill_id"] and r["state"] in LIVE]
            self._require(len(live) <= limit, f"{len(live)} live runs of backfill {run['backfill_id']}, limit {limit}")
            limit = next(p["max_active_runs"] for p in self._database.rows("pipeline") if p["no"] == run["pipeline_no"])
            live = [r for r in runs if r["pipeline_no"] == run["pipeline_no"] and r["state"] in LIVE]
            self._require(len(live) <= limit, f"{len(live)} live runs of pipeline {run['pipeline_no']}, limit {limit}")
        unfinished = Counter((r["pipeline_no"], r["interval_start"]) for r in runs if r["state"] in UNFINISHED)
        self._require(all(n == 1 for n in unfinished.values()), "an interval has two unfinished runs")

    def _callback(self, tx: Tx, old: Values | None, new: Values | None) -> None:
        """A claim ends by its runner's hand, or by anybody's once its lease is over."""
        if new is not None and new["token"] is not None and (old is None or old["token"] != new["token"]):
            self.claimed_by[new["token"]] = tx.who
        if old is not None and old["token"] is not None and (new is None or new["token"] != old["token"]):
            own = tx.who == self.claimed_by[old["token"]]
            over = old["lease_until"] <= self._database.now()
            self._require(own or over, f"{tx.who} ended the claim of {self.claimed_by[old['token']]}: {old} → {new}")

    def _missed(self, old: Values | None, new: Values) -> None:
        self._require(new["decided_at"] >= new["due_at"], f"missed before its moment: {new}")
        if new["run_id"] is not None and new["task"] is None and (old is None or old["state"] == "armed"):
            run = next(r for r in self._database.rows("run") if r["id"] == new["run_id"])
            done = run["state"] == "succeeded" and run["finished_at"] <= new["due_at"]
            self._require(not done, f"missed though its run was done in time: {new}")

    def _owner(self, tx: Tx, names: set[str]) -> None:
        """A transaction of a shard is its owner's: events and offsets of one that is not are a former owner's."""
        shard = tx.notes.get("shard")
        if shard is None or not names & (OUTBOXES.keys() | OFFSETS.keys()):
            return
        table, partition, epoch = shard
        row = next(r for r in self._database.rows(table) if r["partition"] == partition)
        self._require(row["epoch"] == epoch, f"{tx.who} committed as owner {epoch} of {table} {partition}: {row}")

    def _appended(self, topic: str, partition: int, entry: Entry) -> None:
        if topic == Topic.RUN_REPORTS and entry.value is not None:
            body = json.loads(entry.value)
            if body["type"] == "RunReported":
                self.said[body["run_id"], body["attempt"], body["state"]] += 1
            elif body["type"] == "RunHeartbeat":
                self.beats[body["run_id"], body["attempt"]] += 1
                offset = self._world.broker.topics[topic][partition].high_watermark - 1
                self.came[body["run_id"], body["attempt"]].append((partition, offset, self._database.now()))

    def is_over(self, launch: Launch) -> bool:
        """Whether the attempt has ended, or a newer one was claimed: it never lives again."""
        row = next(r for r in self._database.rows("run") if r["id"] == launch.run_id)
        return bool(row["attempt"] != launch.attempt or row["state"] not in LIVE)

    def told(self, launch: Launch, what: str, *, over: bool, answer: bool) -> None:
        """A host answered its driver. ``over``: whether the attempt was over when it was asked."""
        self._require(not (over and answer), f"{what} of {launch.key} was answered with yes though it was over")

    def began(self, driver: Driver, at_work: list[Driver]) -> None:
        """A driver begins with the user's code. Where clocks jump, a lease may end before its driver knows."""
        run = driver.launch.run_id
        others = [d.launch.attempt for d in at_work if d.launch.run_id == run and d.works()]
        jumped = any("jump" in fault for fault in self._world.injected)
        self._require(jumped or not others, f"attempt {driver.launch.attempt} of run {run} began beside {others}")

    def called(self, claim: Claim) -> None:
        """A callback's target was reached."""
        done = self._world.calls_done[claim.deadline_id]
        row = next(c for c in self._database.rows("callback") if c["deadline_id"] == claim.deadline_id)
        self._require(row["state"] != "succeeded", f"called again after it was recorded as done ({done} times): {row}")
        if not any("jump" in fault for fault in self._world.injected):
            self._require(row["token"] == claim.token, f"called under the token {claim.token}, the claim is {row}")

    # in the end

    def drained(self) -> bool:
        """Whether nothing is left to do."""
        rows = self._database.rows
        terminal = backfill_domain.MACHINE.terminal
        if any(b["state"] not in terminal and b["state"] != "paused" for b in rows("backfill")):
            return False
        if any(rows(name) for name in OUTBOXES) or any(c["state"] in ("pending", "running") for c in rows("callback")):
            return False
        if any(r["state"] in LIVE for r in rows("run")) or any(d["closed_at"] is None for d in rows("deadline_digest")):
            return False
        now = self._database.now()
        watched = WATCHER in self._world.services
        if watched and any(d["state"] == "armed" and d["due_at"] <= now for d in rows("deadline")):
            return False
        # Nothing is left locked: there is a moment without any transaction.
        if self._database.open or self._database.advisory or not self._world.broker.settled():
            return False
        return all(self._is_read(table, s.reads) for table, s in OFFSETS.items() if s in self._world.services)

    def _is_read(self, table: str, topics: tuple[Topic, ...]) -> bool:
        stored = {(r["topic"], r["partition"]): r["next_offset"] for r in self._database.rows(table)}
        return all(
            stored.get((str(topic), p), 0) >= log.high_watermark
            for topic in topics
            for p, log in enumerate(self._world.broker.topics[str(topic)])
        )

    def waiting(self) -> str:
        """What is left to do, for whoever looks into a schedule that does not end."""
        rows = self._database.rows
        left: dict[str, Any] = {
            "backfills": [(b["id"], b["state"]) for b in rows("backfill") if b["ended_at"] is None],
            "runs": [(r["id"], r["state"], r["attempt"], str(r["lease_until"])) for r in rows("run") if r["slot"]],
            "outboxes": {name: len(rows(name)) for name in OUTBOXES if rows(name)},
            "callbacks": [c["deadline_id"] for c in rows("callback") if c["state"] in ("pending", "running")],
            "due": [d["id"] for d in rows("deadline") if d["state"] == "armed" and d["due_at"] <= self._database.now()],
            "open": [(tx.who, tx.last_active) for tx in self._database.open],
            "unread": [t for t, s in OFFSETS.items() if s in self._world.services and not self._is_read(t, s.reads)],
        }
        return f"{ {name: what for name, what in left.items() if what} } at {self._database.now()}"

    def check_end(self) -> None:
        """Everything has drained: what must be true of all that happened."""
        self._check_events()
        self._check_answers()
        self._check_runs()
        if WATCHER in self._world.services:
            self._check_deadlines()
        if self._world.scheduler.failure is not None:
            raise self._world.scheduler.failure

    def _check_events(self) -> None:
        seen: dict[Place, list[str]] = defaultdict(list)
        for topic in map(str, Topic):
            for _, _, entry in self._world.broker.read(topic):
                if entry.transaction is not None:
                    headers = {name: (raw or b"").decode() for name, raw in entry.headers}
                    seen[topic, entry.key, headers.get("ce_source")].append(headers.get("ce_id", ""))
        for place in seen.keys() | self.events.keys():
            expected, found = self.events.get(place, []), seen.get(place, [])
            self._require(expected == found, f"{place}: committed {expected}, a subscriber sees {found}")

    def _check_answers(self) -> None:
        answers: Counter[str] = Counter()
        for topic in (Topic.BACKFILL_EVENTS, Topic.PIPELINE_EVENTS):
            for _, _, entry in self._world.broker.read(str(topic)):
                reply = json.loads(entry.value or b"{}").get("in_reply_to")
                if reply is not None:
                    answers[reply] += 1
        dead = [(dict(e.headers).get("ce_id") or b"").decode() for _, _, e in self._world.broker.read("dead-letters")]
        for ce_id, times in self._world.published.items():
            got = answers[ce_id] + dead.count(ce_id)
            self._require(got == times, f"message {ce_id} was published {times} times and answered {got} times")

    def _check_runs(self) -> None:
        runs: dict[str, list[Values]] = defaultdict(list)
        for run in self._database.rows("run"):
            runs[run["backfill_id"]].append(run)
        for backfill in self._database.rows("backfill"):
            mine = runs[backfill["id"]]
            self._require(len(mine) == backfill["runs"], f"backfill {backfill['id']} has {len(mine)} runs")
            if backfill["state"] == "paused":
                continue
            for run in mine:
                self._require(run["state"] in run_domain.MACHINE.terminal, f"{backfill['state']}, but a run is {run}")
                self._check_outcome(backfill, run)
            failed = any(run["state"] == "failed" for run in mine)
            cause = backfill["cancel_cause"]
            expected = "cancelled" if cause == "user" else "failed" if cause or failed else "succeeded"
            self._require(backfill["state"] == expected, f"{backfill} ought to be {expected}")

    def _check_outcome(self, backfill: Values, run: Values) -> None:
        fails = (backfill["pipeline"], run["interval_start"]) in self._world.failing
        if run["state"] == "succeeded":
            self._require(not fails, f"run {run} succeeded though its code fails")
        elif run["state"] == "failed" and run["error"]["type"] != "DriverLost":
            self._require(fails, f"run {run} failed though its code does not")
        elif run["state"] == "cancelled":
            self._require(backfill["cancel_cause"] is not None, f"run {run} is cancelled, its backfill is {backfill}")

    def _check_deadlines(self) -> None:
        told: Counter[int] = Counter()
        for _, _, entry in self._world.broker.read(str(Topic.DEADLINE_MISSED)):
            body = json.loads(entry.value or b"{}")
            if body["type"] == "DeadlineMissed":
                told[body["deadline_id"]] += 1
            elif body["type"] == "DeadlinesMissed":
                told.update(each["deadline_id"] for each in body["missed"])
        callbacks = {c["deadline_id"]: c for c in self._database.rows("callback")}
        for deadline in self._database.rows("deadline"):
            id, missed = deadline["id"], deadline["state"] == "missed"
            self._require(told[id] == missed, f"{deadline['state']} and told {told[id]} times: {deadline}")
            calls = missed and deadline["callback"] is not None and deadline["digest_id"] in (None, id)
            self._require((id in callbacks) == calls, f"callback {id in callbacks}: {deadline}")
            if deadline["state"] == "armed":
                self._require(deadline["due_at"] > self._database.now(), f"overdue: {deadline}")
        for callback in callbacks.values():
            done = self._world.calls_done[callback["deadline_id"]]
            self._require(callback["state"] != "succeeded" or done >= 1, f"not called: {callback}")


@cache
def _reachable(name: str, state: str) -> frozenset[str]:
    machine, found = MACHINES[name], {state}
    while more := {after for before in found for after in machine.edges[before]} - found:
        found |= more
    return frozenset(found - {state})
