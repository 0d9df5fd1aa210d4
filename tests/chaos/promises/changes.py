"""Every committed state change follows an edge, the live attempt, the limits and the order."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby

from tests.chaos.history import History, Row
from tests.chaos.promises.limits import limits_of

# Restates the contract's tables, so that an edge added to the code by mistake is found.
EDGES = {
    "backfill": "running paused, paused running, running cancelling, paused cancelling, cancelling cancelled, "
    "cancelling failed, running succeeded, running failed, paused succeeded, paused failed",
    "run": "queued starting, starting running, running succeeded, running failed, running publishing, "
    "publishing succeeded, publishing failed, starting succeeded, starting failed, starting queued, running queued, "
    "queued cancelled, starting cancelled, running cancelled",
    "task_run": "none queued, queued running, running succeeded, running failed, running retrying, retrying running, "
    "none skipped, queued skipped, none upstream_failed, queued upstream_failed, none cancelled, queued cancelled, "
    "running cancelled, retrying cancelled",
    "deadline": "armed missed, armed met, armed void",
    "callback": "pending running, running succeeded, running failed, running pending",
}
BEGINNINGS = {"backfill": ("running",), "deadline": ("armed", "void"), "callback": ("pending",)}
LIVE = ("starting", "running", "publishing")


def every_change_is_an_edge(history: History) -> Iterator[str]:
    """Every change follows the tables of states, and rows start in an allowed state."""
    allowed = {entity: {tuple(edge.split()) for edge in edges.split(", ")} for entity, edges in EDGES.items()}
    for change in history.changes:
        entity, edge = change["entity"], (change["from"], change["to"])
        if change["from"] is None:
            if change["to"] not in BEGINNINGS.get(entity, ()):
                yield f"{entity} {change['id']} began as {change['to']}"
        elif edge not in allowed[entity]:
            yield f"{entity} {change['id']} went from {change['from']} to {change['to']}"


def only_the_live_attempt_changes_anything(history: History) -> Iterator[str]:
    """Each claim increments a run's attempt by one. Tasks of older attempts no longer change."""
    newest: dict[str, int] = {}
    for change in history.changes:
        if change["entity"] == "run":
            claimed = change["to"] == "starting"
            expected = newest.get(change["id"], 0) + claimed
            if change["attempt"] != expected:
                yield f"run {change['id']} became {change['to']} in attempt {change['attempt']} instead of {expected}"
            newest[change["id"]] = change["attempt"]
        elif change["entity"] == "task_run" and change["attempt"] != newest.get(change["id"]):
            yield (
                f"task {change['task']} of run {change['id']} became {change['to']} in attempt {change['attempt']} "
                f"while {newest.get(change['id'])} was the newest"
            )


def limits_hold_at_every_commit(history: History) -> Iterator[str]:
    """Count live runs after each change, by backfill and pipeline.

    Unlike a sampler, this misses nothing.
    """
    limits = limits_of(history)
    of_run = {str(run["id"]): run["backfill_id"] for run in history.rows("run")}
    pipelines = {row["id"]: row["pipeline"] for row in history.rows("backfill")}
    live: dict[str, set[str]] = defaultdict(set)
    most: dict[str, int] = defaultdict(int)
    for change in _of_runs(history):
        backfill = of_run.get(change["id"], "?")
        for whose in (backfill, f"pipeline:{pipelines.get(backfill)}"):
            if change["to"] in LIVE:
                live[whose].add(change["id"])
            else:
                live[whose].discard(change["id"])
            most[whose] = max(most[whose], len(live[whose]))
    for whose, count in most.items():
        if count > limits.get(whose, count):
            yield f"{whose} had {count} live runs at one commit, its limit is {limits[whose]}"


def positions_follow_the_dates(history: History) -> Iterator[str]:
    """Positions follow the logical dates, reversed if the request says so."""
    for id, runs in _by_backfill(history).items():
        wish = history.wishes.get(id)
        by_date = sorted(runs, key=lambda run: run["interval_start"], reverse=wish is not None and wish.backwards)
        if [run["position"] for run in by_date] != list(range(len(runs))):
            yield f"{id} starts its dates in the order {[run['position'] for run in by_date][:20]}"


def runs_start_in_order(history: History) -> Iterator[str]:
    """Each claim takes the first runs that are queued at that commit."""
    backfill_of = {str(run["id"]): run["backfill_id"] for run in history.rows("run")}
    position = {str(run["id"]): run["position"] for run in history.rows("run")}
    queued = {id: {str(run["id"]) for run in runs} for id, runs in _by_backfill(history).items()}
    by_backfill = defaultdict(list)
    for change in _of_runs(history):
        by_backfill[backfill_of.get(change["id"], "?")].append(change)
    for id, changes in by_backfill.items():
        waiting = Queue(position[run] for run in queued.get(id, ()))
        for _, group in groupby(changes, key=lambda change: change["tx"]):
            yield from _claimed(id, list(group), position, waiting)


def _claimed(id: str, group: Iterable[Row], position: dict[str, int], waiting: Queue) -> Iterator[str]:
    claimed = set()
    for change in group:
        place = position.get(change["id"], -1)
        if change["to"] == "queued":
            waiting.put(place)
        elif change["from"] == "queued":
            if not waiting.take(place):
                yield f"{id}: run {change['id']} left the queue and was not in it"
            elif change["to"] == "starting":
                claimed.add(place)
    first = waiting.first()
    if claimed and first is not None and first < max(claimed):
        yield f"{id}: {sorted(claimed)} were started while {first} was queued"


class Queue:
    """Queued positions. Finding the first of 100,000 is fast."""

    def __init__(self, places: Iterable[int]) -> None:
        self._heap = sorted(places)
        self._there = set(self._heap)

    def put(self, place: int) -> None:
        """Add a position."""
        self._there.add(place)
        heapq.heappush(self._heap, place)

    def take(self, place: int) -> bool:
        """Remove a position; returns whether it was queued."""
        there = place in self._there
        self._there.discard(place)
        return there

    def first(self) -> int | None:
        """The lowest position."""
        while self._heap and self._heap[0] not in self._there:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None


def each_attempt_has_its_tasks(history: History) -> Iterator[str]:
    """Every attempt has task rows, all ended. The last attempt's rows match the run's end."""
    tasks: dict[int, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in history.rows("task_run"):
        tasks[row["run_id"]][row["attempt"]].append(row)
        if row["finished_at"] is None:
            yield f"task {row['task']} of run {row['run_id']}, attempt {row['attempt']}, is {row['state']} for ever"
    for run in history.rows("run"):
        if sorted(tasks[run["id"]]) != list(range(1, run["attempt"] + 1)):
            yield f"run {run['id']} had {run['attempt']} attempts, there are tasks of {sorted(tasks[run['id']])}"
        states = {row["state"] for row in tasks[run["id"]][run["attempt"]]}
        if run["state"] in ("succeeded", "failed") and states != {run["state"]}:
            yield f"run {run['id']} is {run['state']} and the tasks of its last attempt are {sorted(states)}"


def _of_runs(history: History) -> Iterator[Row]:
    return (change for change in history.changes if change["entity"] == "run")


def _by_backfill(history: History) -> dict[str, list[Row]]:
    runs = defaultdict(list)
    for run in history.rows("run"):
        runs[run["backfill_id"]].append(run)
    return runs


PROMISES = (
    every_change_is_an_edge,
    only_the_live_attempt_changes_anything,
    limits_hold_at_every_commit,
    positions_follow_the_dates,
    runs_start_in_order,
    each_attempt_has_its_tasks,
)
