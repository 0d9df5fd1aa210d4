"""Failed runs join the callbacks that collect them, and their claim closes those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import select
from tests.support.both_stores import BASE, NOW, begin, claim, end, give
from tests.support.definitions import daily
from tests.support.sessions import MemoryStore, commit

from callback_runner.record import ERROR_CHARACTERS, LISTED, close_all
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.topics import CALLBACK_RUNNER, RUN_STARTER, Topic
from retrofill_core.store import callbacks
from retrofill_core.store import tables as t
from run_starter.reports.handling import call_for_failures

TOGETHER = {"callback": "page", "digest_seconds": 60}
EACH = {"callback": {"kind": "topic", "topic": "failed"}, "digest_seconds": 0}


def tx_of(conn: Any, service: Any = RUN_STARTER) -> Transaction:
    return Transaction(conn, service, 0, 0, 1_000_000)


class Failing:
    """A store in which runs fail, one commit each."""

    def __init__(self, *rules: dict[str, Any]) -> None:
        self.store = MemoryStore()
        self.definition = daily(on_run_failed=list(rules))
        self.hints: list[Any] = []
        self.store.play(BASE)

    def do(self, action: Callable[[Any], Any]) -> Any:
        said = self.store.play([("a", action), ("a", commit)])[0]
        assert not str(said).startswith("error"), said
        return said

    def fail(self, *ids: int) -> None:
        def work(conn: Any) -> None:
            for id in ids:
                attempt = claim(conn, 1, id)
                give(conn, attempt, id)
                begin(conn, attempt, id)
                end(conn, id, attempt, state="failed")
            tx = tx_of(conn)
            call_for_failures(tx, {"b1": ids}, {"b1": self.definition}, NOW, 1)
            self.hints += [row.key for row in tx.outgoing if row.topic == Topic.CALLBACK_REQUESTS]

        self.do(work)

    def rows(self, table: Any) -> list[dict[str, Any]]:
        return list(self.do(lambda conn: [dict(row) for row in conn.execute(select(table)).mappings().all()]))

    def close(self) -> list[bytes]:
        """Close all callbacks as the runner does; returns what was published about them."""
        published: list[bytes] = []

        def work(conn: Any) -> None:
            tx = tx_of(conn, CALLBACK_RUNNER)
            ids = conn.execute(select(t.callback.c.deadline_id)).scalars().all()
            close_all(tx, callbacks.lock_pending(conn, list(ids)))
            published.extend(row.value for row in tx.outgoing if row.value)

        self.do(work)
        return published


def test_failures_join_the_callback_that_collects_them() -> None:
    failing = Failing(TOGETHER)
    failing.fail(1)
    failing.fail(2, 3)
    (row,) = failing.rows(t.callback)
    assert (row["occasion"], row["place"], row["collects"], row["event"]) == ("run_failed", 0, True, {})
    runs = failing.rows(t.callback_run)
    assert sorted((each["run_id"], each["callback_id"]) for each in runs) == [(id, 1) for id in (1, 2, 3)]
    assert failing.hints == [b"1"]  # one hint is enough


def test_after_the_first_call_a_failure_opens_another() -> None:
    failing = Failing(TOGETHER)
    failing.fail(1, 2)
    failing.close()
    failing.fail(3)
    first, second = sorted(failing.rows(t.callback), key=lambda row: row["deadline_id"])
    assert (first["event"]["count"], first["collects"]) == (2, False)
    assert (second["event"], second["collects"]) == ({}, True)
    assert [each["callback_id"] for each in failing.rows(t.callback_run)] == [1, 1, 2]


def test_each_place_of_the_list_has_each_failure() -> None:
    failing = Failing(TOGETHER, EACH, TOGETHER)
    failing.fail(1, 2)
    places = [(each["run_id"], each["place"]) for each in failing.rows(t.callback_run)]
    assert sorted(places) == [(run, place) for run in (1, 2) for place in (0, 1, 2)]
    made = failing.rows(t.callback)
    assert sorted((row["place"], row["kind"]) for row in made) == [
        (0, "function"),
        (1, "topic"),
        (1, "topic"),
        (2, "function"),
    ]
    assert len(failing.hints) == 4


def test_a_pipeline_that_lists_nothing_sends_nothing() -> None:
    failing = Failing()
    failing.fail(1)
    assert failing.rows(t.callback) == failing.rows(t.callback_run) == failing.hints == []


def test_an_event_lists_the_first_with_short_errors_and_counts_all(monkeypatch: Any) -> None:
    monkeypatch.setattr("callback_runner.record.LISTED", 2)
    failing = Failing(
        {"callback": "page", "kwargs": {"text": "{digest.count}: {run.logical_date:%d} {error.type}", "{": [1]}}
    )
    failing.fail(3, 1, 2)
    error = {"type": "ValueError", "message": "x" * 4000, "traceback": "long"}
    failing.do(lambda conn: conn.execute(t.run.update().values(error=error)))
    (published,) = failing.close()
    (row,) = failing.rows(t.callback)
    event = row["event"]
    assert (event["type"], event["count"], event["not_listed"]) == ("RunsFailed", 3, 1)
    assert [each["run_id"] for each in event["failed"]] == [1, 2]
    assert event["failed"][0]["error"] == {"type": "ValueError", "message": "x" * (ERROR_CHARACTERS - 1) + "…"}
    assert (event["runs"], event["runs_done"], event["backfill_id"]) == (3, 3, "b1")
    assert event["command"] == "retrofill backfill show b1"
    assert row["kwargs"] == {"text": "3: 01 ValueError", "{": [1]}
    assert b'"RunsFailed"' in published
    assert LISTED == 100
