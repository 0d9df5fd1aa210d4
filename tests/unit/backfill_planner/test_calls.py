"""The end of a backfill and what its pipeline lists for it are written together."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select
from tests.support.both_stores import BASE, begin, claim, end, give
from tests.support.definitions import daily
from tests.support.sessions import MemoryStore, commit

from backfill_planner.endings import check
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.topics import PLANNER, Topic
from retrofill_core.store import tables as t

LISTS: dict[str, Any] = {
    "on_backfill_failed": [
        {
            "callback": {"kind": "webhook", "url": "https://example.org", "body": "slack"},
            "kwargs": {"text": "{backfill.failed} of {backfill.runs} in {pipeline}: {backfill.state}"},
            "at_most_once": True,
        },
        {"callback": "page"},
    ],
    "on_backfill_succeeded": [{"callback": {"kind": "topic", "topic": "done"}, "kwargs": {"left": "{backfill.id}"}}],
}


def ended(run_state: str, definition: dict[str, Any], **backfill: Any) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The callbacks of a backfill whose last run ended in ``run_state``, and the keys of the hints."""
    hints: list[bytes] = []

    def work(conn: Any) -> list[dict[str, Any]]:
        conn.execute(t.backfill.update().values(definition=definition, **backfill))
        for id in (1, 2, 3):
            attempt = claim(conn, 1, id)
            give(conn, attempt, id)
            begin(conn, attempt, id)
            end(conn, id, attempt, state="succeeded" if id < 3 else run_state)
        tx = Transaction(conn, PLANNER, 0, 0, 1_000_000)
        check(tx, "b1", 1)
        hints.extend(row.key or b"" for row in tx.outgoing if row.topic == Topic.CALLBACK_REQUESTS)
        rows = conn.execute(select(t.callback).order_by(t.callback.c.place)).mappings().all()
        return [dict(row) for row in rows]

    said = MemoryStore().play([*BASE, ("a", work), ("a", commit)])[len(BASE)]
    assert isinstance(said, list), said
    return said, hints


def test_a_failure_calls_each_of_its_list() -> None:
    (first, second), hints = ended("failed", daily(**LISTS).as_json())
    assert hints == [b"1", b"2"]
    assert (first["kind"], first["name"], first["occasion"], first["place"]) == (
        "webhook",
        "https://example.org",
        "backfill_failed",
        0,
    )
    assert first["options"] == {"at_most_once": True, "secret": "default", "body": "slack"}
    assert first["kwargs"] == {"text": "1 of 3 in p: failed"}
    assert (first["collects"], first["state"], first["backfill_id"]) == (False, "pending", "b1")
    event = first["event"]
    assert (event["type"], event["callback"], event["message"]) == (
        "BackfillFailed",
        "https://example.org",
        "of 3 runs: 1 failed",
    )
    assert event["runs"] == {"succeeded": 2, "failed": 1}
    assert event["command"] == "retrofill backfill show b1"
    assert event["range_start"] < event["range_end"]
    assert (second["name"], second["place"], second["event"]["callback"]) == ("page", 1, "page")


def test_a_success_calls_its_own_list() -> None:
    ((row,), hints) = ended("succeeded", daily(**LISTS).as_json())
    assert (row["name"], row["occasion"], row["kwargs"]) == ("done", "backfill_succeeded", {"left": "b1"})
    assert hints == [b"1"]


@pytest.mark.parametrize(
    ("definition", "backfill"),
    [
        (daily(**LISTS).as_json(), {"state": "cancelling", "cancel_cause": "user"}),
        (daily().as_json(), {}),
        ({**daily().as_json(), "on_backfill_failed": [{"callback": {"kind": "of a newer release"}}]}, {}),
        ({name: value for name, value in daily().as_json().items() if not name.startswith("on_")}, {}),
    ],
    ids=["a user cancelled it", "it lists nothing", "a newer release planned it", "an older release planned it"],
)
def test_nothing_is_called(definition: dict[str, Any], backfill: dict[str, Any]) -> None:
    assert ended("failed", definition, **backfill) == ([], [])


@pytest.mark.parametrize(("run_state", "called"), [("succeeded", []), ("failed", ["backfill_failed"] * 2)])
def test_the_end_of_an_undo_is_no_news_of_success(run_state: str, called: list[str]) -> None:
    calls, _ = ended(run_state, daily(**LISTS).as_json(), undoes="b0")
    assert [each["occasion"] for each in calls] == called
    assert all(each["event"]["undoes"] == "b0" for each in calls)
