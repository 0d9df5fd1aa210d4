"""Every committed state change follows an edge, the live attempt, the limits and the order."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise

from retrofill.states import AttemptMode
from tests.chaos.history import History, Row
from tests.chaos.promises.limits import limits_of

# Restates the contract's tables, so that an edge added to the code by mistake is found.
EDGES = {
    "backfill": "running paused, paused running, running in_review, paused in_review, in_review running, "
    "in_review cancelling, running cancelling, paused cancelling, cancelling cancelled, cancelling failed, "
    "running succeeded, running failed, paused succeeded, paused failed",
    "run": "queued starting, starting running, running succeeded, running failed, running publishing, "
    "publishing succeeded, publishing failed, publishing staged, staged publishing, running staged, "
    "staged cancelled, starting succeeded, "
    "starting failed, starting queued, running queued, queued cancelled, starting cancelled, running cancelled",
    "attempt": "starting running, starting ended, running ended",
    "task_run": "none queued, queued running, running succeeded, running failed, running retrying, retrying running, "
    "none skipped, queued skipped, none upstream_failed, queued upstream_failed, none cancelled, queued cancelled, "
    "running cancelled, retrying cancelled",
    "deadline": "armed missed, armed met, armed void",
    "callback": "pending running, running succeeded, running failed, running pending, pending dropped",
}
BEGINNINGS = {
    "backfill": ("running",),
    "attempt": ("starting",),
    "deadline": ("armed", "void"),
    "callback": ("pending",),
}
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
    """A run's attempt rises by one whenever it begins. Tasks of older attempts no longer change."""
    newest: dict[str, int] = {}
    for change in history.changes:
        if change["entity"] == "run":
            expected = newest.get(change["id"], 0) + (change["to"] == "running")
            if change["attempt"] != expected:
                yield f"run {change['id']} became {change['to']} in attempt {change['attempt']} instead of {expected}"
            newest[change["id"]] = change["attempt"]
        elif change["entity"] == "task_run" and change["attempt"] != newest.get(change["id"]):
            yield (
                f"task {change['task']} of run {change['id']} became {change['to']} in attempt {change['attempt']} "
                f"while {newest.get(change['id'])} was the newest"
            )


def live_runs_are_part_of_live_attempts(history: History) -> Iterator[str]:
    """At every commit, each live run is part of a live attempt that was given it."""
    attempts = {row["id"]: row for row in history.rows("attempt")}
    runs = {str(row["id"]): row for row in history.rows("run")}
    live: set[str] = set()
    attempt_of: dict[str, int] = {}
    runs_of: dict[int | None, set[str]] = defaultdict(set)
    for changes in _by_commit(history):
        touched: set[int | None] = set()
        for change in changes:
            if change["entity"] == "attempt":
                live.discard(change["id"]) if change["to"] == "ended" else live.add(change["id"])
                touched.add(int(change["id"]))
                continue
            runs_of[attempt_of.pop(change["id"], None)].discard(change["id"])
            if change["to"] in LIVE:
                attempt_of[change["id"]] = change["attempt_id"]
                runs_of[change["attempt_id"]].add(change["id"])
                touched.add(change["attempt_id"])
                if not _has(attempts.get(change["attempt_id"]), runs.get(change["id"], {}), change["to"]):
                    yield f"run {change['id']} became {change['to']} in attempt {change['attempt_id']}, which had not got it"
        for attempt in touched:
            if runs_of[attempt] and str(attempt) not in live:
                yield f"attempt {attempt} is over, and its runs {sorted(runs_of[attempt])} are live"


def _has(attempt: Row | None, run: Row, to: str) -> bool:
    """Whether the attempt was given the run, which became ``to``."""
    if attempt is None or attempt["backfill_id"] != run.get("backfill_id"):
        return False
    if run["position"] in range(attempt["position"], attempt["position"] + attempt["runs"]):
        return True
    # It did not begin all that it was given.
    return to == "starting" and attempt.get("outcome") == "done" and run["position"] > attempt["position"]


def batches_are_adjacent(history: History) -> Iterator[str]:
    """An attempt's runs have adjacent intervals, and are not more than the pipeline allows.

    A publisher has those that some attempts staged, and spans others between them.
    """
    pipelines = {row["id"]: row["pipeline"] for row in history.rows("backfill")}
    runs = {(row["backfill_id"], row["position"]): row for row in history.rows("run")}
    for attempt in history.rows("attempt"):
        if attempt["mode"] == AttemptMode.PUBLISH:
            continue
        id, first, count = attempt["backfill_id"], attempt["position"], attempt["runs"]
        most = history.batches.get(pipelines.get(id, "?"), 1)
        if not 1 <= count <= most:
            yield f"attempt {attempt['id']} of {id} has {count} runs, at most {most} are allowed"
        mine = [runs[id, n] for n in range(first, first + count) if (id, n) in runs]
        in_order = sorted(mine, key=lambda run: run["interval_start"])
        gaps = [one["id"] for one, other in pairwise(in_order) if one["interval_end"] != other["interval_start"]]
        if len(mine) != count or gaps:
            yield f"attempt {attempt['id']} of {id} has {len(mine)} of {count} runs, with gaps after {gaps}"


def batches_run_in_order(history: History) -> Iterator[str]:
    """An attempt gets all its runs at once. It begins them one by one in their order and skips none,
    unless it is a range. When that ends, all its runs have begun, or none.
    """
    attempts = {row["id"]: row for row in history.rows("attempt")}
    ranges = {id for id, row in attempts.items() if row["mode"] == "range"}
    position = {str(row["id"]): row["position"] for row in history.rows("run")}
    begun: dict[int, list[str]] = defaultdict(list)
    given: dict[int, set[str]] = defaultdict(set)
    at_work: dict[int, set[str]] = defaultdict(set)
    for changes in _by_commit(history):
        runs = [change for change in changes if change["entity"] == "run"]
        # One statement begins the runs of several reports, in no order of its rows.
        runs.sort(key=lambda change: position.get(change["id"], 0) if change["to"] == "running" else len(position))
        for change in runs:
            run, attempt = change["id"], change["attempt_id"]
            if change["from"] in ("queued", "staged") and change["to"] in LIVE:
                given[attempt].add(run)
            at_work[attempt].discard(run)
            if change["to"] == "running":
                at_work[attempt].add(run)
                next_one = attempts.get(attempt, {"position": -1})["position"] + len(begun[attempt])
                if attempt not in ranges and position.get(run) != next_one:
                    yield f"attempt {attempt} began run {run} after {begun[attempt]}: it was not the next one"
                begun[attempt].append(run)
        # Within a transaction, runs begin before others end.
        for attempt in {change["attempt_id"] for change in runs}:
            if attempt not in ranges and len(at_work[attempt]) > 1:
                yield f"attempt {attempt} was at work on {sorted(at_work[attempt])} at once"
    for id, row in attempts.items():
        if id in ranges and len(begun[id]) not in (0, row["runs"]):
            yield f"attempt {id} began only {begun[id]} of its range"
        all_of_it = set(range(row["position"], row["position"] + row["runs"]))
        had = {position.get(run) for run in given[id]}
        ends = {row["position"], row["position"] + row["runs"] - 1}
        if row["mode"] == AttemptMode.PUBLISH:
            right = ends <= had <= all_of_it
        elif row.get("outcome") == "done" and row["mode"] == AttemptMode.EACH:
            # It may have given way after those that it began, which are the first ones.
            right = all_of_it <= had and had == set(range(row["position"], row["position"] + len(had)))
        else:
            right = had == all_of_it
        if not right:
            yield f"attempt {id} was given {sorted(given[id])} instead of {row['runs']} runs"


def limits_hold_at_every_commit(history: History) -> Iterator[str]:
    """Count live attempts after each change, by backfill and pipeline.

    Unlike a sampler, this misses nothing.
    """
    limits = limits_of(history)
    of_attempt = {str(row["id"]): row["backfill_id"] for row in history.rows("attempt")}
    pipelines = {row["id"]: row["pipeline"] for row in history.rows("backfill")}
    live: dict[str, set[str]] = defaultdict(set)
    most: dict[str, int] = defaultdict(int)
    for change in _of("attempt", history):
        backfill = of_attempt.get(change["id"], "?")
        for whose in (backfill, f"pipeline:{pipelines.get(backfill)}"):
            if change["to"] == "ended":
                live[whose].discard(change["id"])
            else:
                live[whose].add(change["id"])
            most[whose] = max(most[whose], len(live[whose]))
    for whose, count in most.items():
        if count > limits.get(whose, count):
            yield f"{whose} had {count} live attempts at one commit, its limit is {limits[whose]}"


def positions_follow_the_dates(history: History) -> Iterator[str]:
    """Positions follow the logical dates, reversed if the request says so."""
    for id, runs in _by_backfill(history).items():
        wish = history.wishes.get(id)
        by_date = sorted(runs, key=lambda run: run["interval_start"], reverse=wish is not None and wish.backwards)
        if [run["position"] for run in by_date] != list(range(len(runs))):
            yield f"{id} starts its dates in the order {[run['position'] for run in by_date][:20]}"


def runs_start_in_order(history: History) -> Iterator[str]:
    """Each claim takes the first runs that are queued at that commit, except for suspects.

    Those are runs with which a driver was lost. They go first, or wait for others. When a retried run
    was queued is not known.
    """
    lost = {row["id"] for row in history.rows("attempt") if row["outcome"] == "lost"}
    backfill_of = {str(run["id"]): run["backfill_id"] for run in history.rows("run")}
    position = {str(run["id"]): run["position"] for run in history.rows("run")}
    queued = {id: {str(run["id"]) for run in runs} for id, runs in _by_backfill(history).items()}
    by_backfill = defaultdict(list)
    for change in _of("run", history):
        id = backfill_of.get(change["id"], "?")
        if id not in queued or change["id"] in queued[id]:
            by_backfill[id].append(change)
    for id, changes in by_backfill.items():
        waiting = Queue(position[run] for run in queued.get(id, ()))
        suspects: set[str] = set()
        for _, group in groupby(changes, key=lambda change: change["tx"]):
            yield from _claimed(id, list(group), position, waiting, lost, suspects)


def _claimed(
    id: str, group: Iterable[Row], position: dict[str, int], waiting: Queue, lost: set[int], suspects: set[str]
) -> Iterator[str]:
    claimed = set()
    for change in group:
        place = position.get(change["id"], -1)
        if (change["from"], change["to"]) == ("running", "queued") and change["attempt_id"] in lost:
            suspects.add(change["id"])
        if change["id"] in suspects:
            continue
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
    """A run has task rows for each time it began, all ended. The last ones match the run's end."""
    tasks: dict[int, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in history.rows("task_run"):
        tasks[row["run_id"]][row["attempt"]].append(row)
        if row["finished_at"] is None:
            yield f"task {row['task']} of run {row['run_id']}, attempt {row['attempt']}, is {row['state']} for ever"
    for run in history.rows("run"):
        if sorted(tasks[run["id"]]) != list(range(1, run["attempt"] + 1)):
            yield f"run {run['id']} had {run['attempt']} attempts, there are tasks of {sorted(tasks[run['id']])}"
        states = {row["state"] for row in tasks[run["id"]][run["attempt"]]}
        # The time limit of a run ends a task that has done nothing wrong.
        timed_out = (run["error"] or {}).get("type") == "RunTimedOut"
        if run["state"] in ("succeeded", "failed") and states != {"cancelled" if timed_out else run["state"]}:
            yield f"run {run['id']} is {run['state']} and the tasks of its last attempt are {sorted(states)}"


def _of(entity: str, history: History) -> Iterator[Row]:
    return (change for change in history.changes if change["entity"] == entity)


def _by_commit(history: History) -> Iterator[list[Row]]:
    """The changes of runs and attempts in each transaction, backfill by backfill.

    Only those of one backfill are numbered in the order of commits.
    """
    backfill_of = {("run", str(row["id"])): row["backfill_id"] for row in history.rows("run")}
    backfill_of |= {("attempt", str(row["id"])): row["backfill_id"] for row in history.rows("attempt")}
    by_backfill = defaultdict(list)
    for change in history.changes:
        if change["entity"] in ("run", "attempt"):
            by_backfill[backfill_of.get((change["entity"], change["id"]))].append(change)
    for changes in by_backfill.values():
        for _, group in groupby(changes, key=lambda change: change["tx"]):
            yield list(group)


def _by_backfill(history: History) -> dict[str, list[Row]]:
    """The runs that were planned, without those that replaced some."""
    retries = {run.get("superseded_by") for run in history.rows("run")}
    runs = defaultdict(list)
    for run in history.rows("run"):
        if run["id"] not in retries:
            runs[run["backfill_id"]].append(run)
    return runs


PROMISES = (
    every_change_is_an_edge,
    only_the_live_attempt_changes_anything,
    live_runs_are_part_of_live_attempts,
    batches_are_adjacent,
    batches_run_in_order,
    limits_hold_at_every_commit,
    positions_follow_the_dates,
    runs_start_in_order,
    each_attempt_has_its_tasks,
)
