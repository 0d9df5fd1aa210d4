"""A callback is called until it succeeds, never afterwards or early, and under its own key."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any

from retrofill_core.contract.topics import Topic
from tests.chaos.history import History, Row


def each_miss_has_its_callback(history: History) -> Iterator[str]:
    """A row for each missed deadline whose alert names a callback, and no other rows."""
    rows = {row["deadline_id"] for row in history.rows("callback") if row["occasion"] is None}
    alerts = _alerts(history)
    wanted = {
        r["id"] for r in history.rows("deadline") if r["state"] == "missed" and alerts.get(r["id"], {}).get("callback")
    }
    for id in sorted(wanted ^ rows):
        yield f"deadline {id} has {'no' if id in wanted else 'a'} callback"


def each_fact_has_its_callbacks(history: History) -> Iterator[str]:
    """A failed run is in one callback for each place of its pipeline's list, and so is an end."""
    backfills = {row["id"]: row for row in history.rows("backfill")}
    lists = {id: history.lists.get(row["pipeline"], {}) for id, row in backfills.items()}
    wanted = Counter(
        ("run", run["id"], place)
        for run in history.rows("run")
        if run["state"] == "failed"
        for place in range(lists.get(run["backfill_id"], {}).get("run_failed", 0))
    )
    for id, row in backfills.items():
        occasion = f"backfill_{row['state']}"
        wanted.update((occasion, id, place) for place in range(lists[id].get(occasion, 0)))
    there = Counter(("run", row["run_id"], row["place"]) for row in history.rows("callback_run"))
    ends = (row for row in history.rows("callback") if row["occasion"] not in (None, "run_failed"))
    there.update((row["occasion"], row["backfill_id"], row["place"]) for row in ends)
    for fact in sorted((wanted - there) + (there - wanted), key=str):
        yield f"{fact} has {there[fact]} callbacks instead of {wanted[fact]}"


def each_failure_is_told(history: History) -> Iterator[str]:
    """Callbacks of failed runs are called for all runs that they have, and one event says so."""
    runs: dict[int, set[int]] = defaultdict(set)
    for row in history.rows("callback_run"):
        runs[row["callback_id"]].add(row["run_id"])
    retried = {row["id"] for row in history.rows("run") if row["superseded_by"] is not None}
    told = [e.body for e in history.of(Topic.CALLBACK_EVENTS) if e.body["type"] == "RunsFailed"]
    times = Counter(body["callback_id"] for body in told)
    for row in history.rows("callback"):
        id = row["deadline_id"]
        never = row["state"] == "dropped" and not row["event"]
        if row["occasion"] == "run_failed" and (times[id] != (not never) or not runs[id]):
            yield f"callback {id} of {len(runs[id])} runs was told {times[id]} times"
    for body in told:
        listed = {each["run_id"] for each in body["failed"]}
        joined = runs[body["callback_id"]]
        # Those that were retried before are not told.
        if not len(joined - retried) <= body["count"] <= len(joined) or not listed <= joined:
            yield f"callback {body['callback_id']} was called for {listed}, its runs are {runs[body['callback_id']]}"


def each_callback_ends_once(history: History) -> Iterator[str]:
    """Every callback has ended with one event, and succeeded.

    Only at-most-once callbacks may fail.
    """
    fields = Counter(
        (int(e.key), e.body["type"])
        for e in history.of(Topic.CALLBACK_EVENTS)
        if e.body["type"] in ("CallbackSucceeded", "CallbackFailed")
    )
    alerts = _alerts(history)
    for row in history.rows("callback"):
        id = row["deadline_id"]
        uncertain = row["state"] == "failed" and alerts.get(id, {}).get("at_most_once", False)
        if row["state"] == "dropped" and _may_be_dropped(history, row):
            continue
        if row["state"] != "succeeded" and not uncertain:
            yield f"callback {id} is {row['state']}: {row['last_error']}"
        if (fields[id, "CallbackSucceeded"], fields[id, "CallbackFailed"]) != (row["state"] == "succeeded", uncertain):
            yield f"callback {id} is {row['state']} and was told another number of times"


def each_receiver_is_called_in_order(history: History) -> Iterator[str]:
    """Of what a receiver is called for about one backfill, the next comes after the last try of the one before."""
    calls = _calls(history)
    orders: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(history.rows("callback"), key=_place):
        if row["order_key"] is not None:
            orders[row["order_key"]].append(row)
    for rows in orders.values():
        for before, after in pairwise(each for each in rows if calls[each["deadline_id"]]):
            last = max(call["at"] for call in calls[before["deadline_id"]])
            first = min(call["at"] for call in calls[after["deadline_id"]])
            # Windows of failed runs end when they do, whatever the order in which they began.
            if first < last - history.clock_slack and after["occasion"] != "run_failed":
                yield f"callback {after['deadline_id']} was called at {first}, {before['deadline_id']} before it at {last}"


def _may_be_dropped(history: History, row: Row) -> bool:
    """All of its runs were retried, or it is a message to people and a newer one of its order exists."""
    runs = {each["run_id"] for each in history.rows("callback_run") if each["callback_id"] == row["deadline_id"]}
    if not row["event"]:
        return all(run["superseded_by"] is not None for run in history.rows("run") if run["id"] in runs)
    newer = [r for r in history.rows("callback") if r["order_key"] == row["order_key"] and _place(r) > _place(row)]
    return bool(newer) and row["options"].get("body") in ("slack", "teams", "pagerduty")


def _place(row: Row) -> tuple[Any, ...]:
    return row["made_at"], row["deadline_id"]


def each_callback_is_called(history: History) -> Iterator[str]:
    """Called at least once, but never more often than claimed or allowed."""
    calls = _calls(history)
    alerts = _alerts(history)
    for row in history.rows("callback"):
        id = row["deadline_id"]
        count = len(calls.pop(id, ()))
        most = 1 if alerts.get(id, {}).get("at_most_once") else history.most_tries
        if row["state"] == "succeeded" and not count:
            yield f"callback {id} succeeded and was never called"
        if count > min(row["attempts"], most):
            yield f"callback {id} was called {count} times in {row['attempts']} of {most} attempts"
    for id in calls:
        yield f"deadline {id} was called and has no callback"


def each_callback_has_one_key(history: History) -> Iterator[str]:
    """All calls of a callback share one idempotency key, which no other callback uses."""
    owners: dict[str, int] = {}
    for id, calls in _calls(history).items():
        keys = {call["key"] for call in calls}
        if len(keys) > 1:
            yield f"callback {id} was called under {len(keys)} keys"
        for key in keys:
            if owners.setdefault(key, id) != id:
                yield f"callbacks {owners[key]} and {id} were called under one key"


def no_call_comes_early(history: History) -> Iterator[str]:
    """Calls come after the deadline, after the facts that they are about, and never after a success."""
    facts = _facts(history)
    ended = {c["id"]: c["at"] for c in history.changes if c["entity"] == "callback" and c["to"] == "succeeded"}
    due = {row["id"]: row["due_at"] for row in history.rows("deadline")}
    for id, calls in _calls(history).items():
        for call in calls:
            first = max([due.get(id, call["at"]), *facts[id]])
            if call["at"] < first - history.clock_slack:
                yield f"callback {id} was called at {call['at']}, what it is about had happened by {first}"
            if call["at"] > ended.get(str(id), call["at"]) + history.clock_slack:
                yield f"callback {id} was called at {call['at']}, after it succeeded at {ended[str(id)]}"


def _facts(history: History) -> dict[int, list[datetime]]:
    """When the transactions began of what each callback is about: a miss, failed runs, or a backfill's end."""
    began = {(change["entity"], change["id"], change["to"]): change["began"] for change in history.changes}
    of = [(row["callback_id"], ("run", str(row["run_id"]), "failed")) for row in history.rows("callback_run")]
    for row in history.rows("callback"):
        id, occasion = row["deadline_id"], row["occasion"]
        if occasion is None:
            of.append((id, ("deadline", str(id), "missed")))
        elif occasion != "run_failed":
            of.append((id, ("backfill", row["backfill_id"], occasion.removeprefix("backfill_"))))
    facts: dict[int, list[datetime]] = defaultdict(list)
    for id, change in of:
        facts[id] += [began[change]] if change in began else []
    return facts


def _alerts(history: History) -> dict[int, Row]:
    """Each deadline's alert, as the workload defined it."""
    pipelines = {row["id"]: row["pipeline"] for row in history.rows("backfill")}
    alerts = {(name, alert["name"]): alert for name, found in history.alerts.items() for alert in found}
    found = {
        row["id"]: alerts.get((pipelines.get(row["backfill_id"], "?"), row["alert"]))
        for row in history.rows("deadline")
    }
    return {id: alert for id, alert in found.items() if alert is not None}


def _calls(history: History) -> dict[int, list[dict[str, Any]]]:
    calls = defaultdict(list)
    for call in history.calls:
        calls[int(call["deadline"])].append(call)
    return calls


PROMISES = (
    each_miss_has_its_callback,
    each_fact_has_its_callbacks,
    each_failure_is_told,
    each_callback_ends_once,
    each_receiver_is_called_in_order,
    each_callback_is_called,
    each_callback_has_one_key,
    no_call_comes_early,
)
