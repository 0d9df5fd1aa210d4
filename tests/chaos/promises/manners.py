"""User code with bad manners: its runs end as declared, and it costs nobody a driver."""

from __future__ import annotations

from collections.abc import Iterator

from retrofill_core.contract.topics import Topic
from tests.chaos.history import History
from tests.chaos.work import label
from tests.support.manners import ENDS_OF_ALL


def manners_end_as_declared(history: History) -> Iterator[str]:
    """A run that failed by its manner has the error that this manner implies."""
    for run in history.rows("run"):
        wish = history.wishes.get(run["backfill_id"])
        what = None if wish is None else wish.manners.get(label(run["interval_start"]))
        declared = None if what is None else ENDS_OF_ALL.get(what)
        if declared is None:
            continue
        type, text = declared
        error = run["error"] or {"type": None, "message": ""}
        if error["type"] != type or text not in error["message"]:
            yield f"run {run['id']} ({what}) ended with {error['type']}: {error['message'][:200]}"


def manners_lose_no_driver(history: History) -> Iterator[str]:
    """No attempt is lost by what its code does."""
    for event in history.of(Topic.RUN_EVENTS):
        wish = history.wishes.get(event.key)
        if wish is not None and wish.manners and event.body["type"] == "RunAttemptLost":
            yield f"run {event.body['run_id']} of {wish.id} lost its driver: {event.body}"


PROMISES = (manners_end_as_declared, manners_lose_no_driver)
