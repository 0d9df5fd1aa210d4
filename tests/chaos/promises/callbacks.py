"""A callback is called until it succeeded, and never after that."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from retrofill.bus.topics import Topic
from tests.chaos.history import History


def each_miss_has_its_callback(history: History) -> Iterator[str]:
    """A row for each missed deadline that names a callback, and for no other."""
    rows = {row["deadline_id"] for row in history.rows("callback")}
    wanted = {r["id"] for r in history.rows("deadline") if r["state"] == "missed" and r["callback"] is not None}
    for id in sorted(wanted ^ rows):
        yield f"deadline {id} has {'no' if id in wanted else 'a'} callback"


def each_callback_ends_once(history: History) -> Iterator[str]:
    """All rows are ended, all succeeded (their tries are many), and one event told it."""
    told = Counter(
        (int(e.key), e.body["type"])
        for e in history.of(Topic.CALLBACK_EVENTS)
        if e.body["type"] in ("CallbackSucceeded", "CallbackFailed")
    )
    for row in history.rows("callback"):
        id = row["deadline_id"]
        if row["state"] != "succeeded":
            yield f"callback {id} is {row['state']}: {row['last_error']}"
        if (told[id, "CallbackSucceeded"], told[id, "CallbackFailed"]) != (row["state"] == "succeeded", False):
            yield f"callback {id} is {row['state']} and was told another number of times"


def each_callback_is_called(history: History) -> Iterator[str]:
    """Called at least once, no more often than it was claimed, always under one key."""
    keys = defaultdict(list)
    for call in history.calls:
        keys[int(call["deadline"])].append(call["key"])
    for row in history.rows("callback"):
        called = keys.pop(row["deadline_id"], [])
        if len(set(called)) > 1:
            yield f"callback {row['deadline_id']} was called under {len(set(called))} keys"
        if row["state"] == "succeeded" and not called:
            yield f"callback {row['deadline_id']} succeeded and was never called"
        if len(called) > row["attempts"]:
            yield f"callback {row['deadline_id']} was called {len(called)} times in {row['attempts']} attempts"
    for id in keys:
        yield f"deadline {id} was called and has no callback"


PROMISES = (each_miss_has_its_callback, each_callback_ends_once, each_callback_is_called)
