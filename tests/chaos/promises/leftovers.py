"""After the heal, nothing remains locked, claimed, leased, unpublished or unread."""

from __future__ import annotations

from collections.abc import Iterator

from retrofill_core.store.tables import SERVICE_TABLES
from tests.chaos.history import History

ENDED = ("succeeded", "failed", "cancelled")
OUTCOMES = ("done", "failed", "lost", "released", "cancelled")


def everything_comes_to_its_end(history: History) -> Iterator[str]:
    """Reports what did not drain."""
    yield from history.undrained


def nothing_is_held(history: History) -> Iterator[str]:
    """No transaction stays open, and no session waits for a lock."""
    for row in history.held:
        yield f"held: {row}"


def no_row_is_claimed(history: History) -> Iterator[str]:
    """Attempts have ended with an outcome and hold no slot, lease or seat, runs and backfills have ended,
    callbacks have no token, and deadlines are decided.
    """
    for row in history.rows("attempt"):
        held = [name for name in ("slot", "pipeline_slot", "lease_until") if row[name] is not None]
        if held or row["state"] != "ended" or row["ended_at"] is None or row["outcome"] not in OUTCOMES:
            yield f"attempt {row['id']} of {row['backfill_id']} is {row['state']}, {row['outcome']}, and has {held}"
    for row in history.rows("seat"):
        if row["attempt_id"] is not None:
            yield f"seat {row['no']} of host {row['host_id']} has attempt {row['attempt_id']}"
    for run in history.rows("run"):
        if run["state"] not in ENDED:
            yield f"run {run['id']} of {run['backfill_id']} is {run['state']}"
    for row in history.rows("backfill"):
        if row["state"] not in ENDED:
            yield f"backfill {row['id']} is {row['state']}"
    for row in history.rows("callback"):
        if row["token"] is not None or row["lease_until"] is not None:
            yield f"callback {row['deadline_id']} is claimed until {row['lease_until']}"
    for row in history.rows("deadline"):
        if row["state"] == "armed":
            yield f"deadline {row['id']} ({row['alert']}) is armed, due {row['due_at']}"


def everything_is_published(history: History) -> Iterator[str]:
    """The outboxes are empty, and no relay batch is open."""
    for package in SERVICE_TABLES:
        rows = history.rows(f"{package}_outbox")
        if rows:
            yield f"{package}: {len(rows)} events are not published"
        for row in history.rows(f"{package}_relay"):
            if row["batch_ids"]:
                yield f"{package}: batch {row['batch']} is open"


def everything_is_read(history: History) -> Iterator[str]:
    """Every service's offsets are at the end of its topics."""
    for package in SERVICE_TABLES:
        for row in history.rows(f"{package}_shard_offset"):
            end = history.ends.get((package, row["topic"], row["partition"]), row["next_offset"])
            if row["next_offset"] != end:
                yield f"{package} is at {row['next_offset']} of {end} in {row['topic']} {row['partition']}"


PROMISES = (
    everything_comes_to_its_end,
    nothing_is_held,
    no_row_is_claimed,
    everything_is_published,
    everything_is_read,
)
