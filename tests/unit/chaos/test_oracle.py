"""The oracle finds what it is for: a small good history passes, and each way of breaking it is told by its promise."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from psycopg.types.range import Range
from tests.chaos.history import History, Wish
from tests.chaos.oracle import PROMISES, check
from tests.chaos.promises.attempts import FORGED
from tests.chaos.work import content
from tests.support.installation import Event

from retrofill.bus.topics import Topic

DAYS = [datetime(2001, 1, n, tzinfo=UTC) for n in (1, 2, 3)]
BEGAN = datetime(2024, 5, 1, 12, tzinfo=UTC)
SECOND = ("p", "2001-01-02")
ALERT = {"name": "soon", "reference": "RUN_QUEUED_AT"}


def at(seconds: float) -> datetime:
    """So long after the request."""
    return BEGAN + timedelta(seconds=seconds)


def event(key: str | int, type: str, **body: Any) -> Event:
    """One event as it is read."""
    told = {"type": type, **{k: v.isoformat() if isinstance(v, datetime) else v for k, v in body.items()}}
    event.count += 1  # type: ignore[attr-defined]
    return Event(0, event.count, str(key), told, {"ce_id": f"e{event.count}"}, json.dumps(told).encode())  # type: ignore[attr-defined]


event.count = 0  # type: ignore[attr-defined]


def run_event(type: str, run: int, attempt: int, seconds: float, **more: Any) -> Event:
    """One of run-events."""
    return event("b", type, pipeline="p", run_id=run, attempt=attempt, at=at(seconds), **more)


def good() -> History:
    """Two days of one backfill, limit 1: the first day fails, the second lost its first attempt and missed its deadline."""
    runs = [
        _run(1, DAYS[0], "failed", attempt=1, finished_at=at(2)),
        _run(2, DAYS[1], "succeeded", attempt=2, finished_at=at(9)),
    ]
    deadlines = [_deadline(1, 1, "void", due=at(5)), _deadline(2, 2, "missed", due=at(5))]
    return History(
        wishes={"b": Wish("b", "p", date(2001, 1, 1), date(2001, 1, 2), limit=1, failing=frozenset({"2001-01-01"}))},
        limits={"p": 1},
        tables={
            "backfill": [_backfill("b", "failed")],
            "backfill_interval": [
                {"backfill_id": "b", "interval_start": day, "run_id": n + 1, "reason": None}
                for n, day in enumerate(DAYS[:2])
            ],
            "run": runs,
            "deadline": deadlines,
            "callback": [_callback(2)],
            "run_starter_outbox": [],
            "run_starter_relay": [{"batch": 7, "batch_ids": []}],
            "run_starter_shard_offset": [{"topic": "run-reports", "partition": 0, "next_offset": 9}],
        },
        events={
            "backfill-events": [
                event("b", "BackfillPlanned", backfill_id="b", runs=2, in_reply_to="r1"),
                event("b", "BackfillFailed", backfill_id="b"),
                event("b", "BackfillPlanned", backfill_id="b", runs=2, in_reply_to="r2"),
            ],
            "run-events": [
                run_event("RunStarted", 1, 1, 1),
                run_event("RunFailed", 1, 1, 2),
                run_event("RunStarted", 2, 1, 3),
                run_event("RunAttemptLost", 2, 1, 4),
                run_event("RunStarted", 2, 2, 6),
                run_event("RunSucceeded", 2, 2, 9),
            ],
            "run-reports": [event("b", "RunReported", run_id=2, attempt=2, state="succeeded")],
            "deadline-missed": [event(2, "DeadlineMissed", deadline_id=2)],
            "callback-events": [event(2, "CallbackSucceeded", deadline_id=2)],
        },
        notes=[
            note(1, 1, "2001-01-01", 101),
            note(1, 1, "2001-01-01", 102),
            note(2, 1, "2001-01-02", 103),
            note(2, 1, "2001-01-02", 104),
            note(2, 2, "2001-01-02", 106),
            note(2, 2, "2001-01-02", 109),
        ],
        outputs={("p", "2001-01-02"): content("p", "2001-01-02", "b", 2)},
        calls=[{"deadline": 2, "key": "k"}],
        sampled={"b": 1, "pipeline:p": 1},
        ends={("run_starter", "run-reports", 0): 9},
    )


def _backfill(id: str, state: str) -> dict[str, Any]:
    return {
        "id": id,
        "pipeline": "p",
        "state": state,
        "runs": 2,
        "max_active_runs": 1,
        "cancel_cause": None,
        "definition": {"deadlines": [ALERT]},
        "covers": Range(DAYS[0], DAYS[2]),
        "requested_at": at(0),
        "ended_at": at(10),
    }


def _run(id: int, day: datetime, state: str, **more: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(["slot", "pipeline_slot", "lease_until", "error"])
    return {
        "id": id, "backfill_id": "b", "interval_start": day, "state": state, "started_at": at(1), **nothing, **more,
    }  # fmt: skip


def _deadline(id: int, run: int, state: str, due: datetime) -> dict[str, Any]:
    return {
        "id": id, "run_id": run, "backfill_id": "b", "alert": "soon", "state": state, "due_at": due, "reason": None,
        "fire_on_failure": False, "callback": "hook",
    }  # fmt: skip


def _callback(id: int) -> dict[str, Any]:
    return {
        "deadline_id": id, "state": "succeeded", "attempts": 1, "token": None, "lease_until": None, "last_error": None,
    }  # fmt: skip


def note(run: int, attempt: int, day: str, seconds: float, backfill: str = "b") -> dict[str, Any]:
    """One line of a driver at work."""
    return {"pipeline": "p", "backfill": backfill, "run": run, "attempt": attempt, "day": day, "at": seconds}


def test_a_good_history_breaks_nothing() -> None:
    assert check(good()) == []


Bad = Callable[[History], Any]


def put(history: History, topic: Topic, *events: Event) -> None:
    """More events."""
    history.events.setdefault(str(topic), []).extend(events)


def change(history: History, table: str, row: int, **values: Any) -> None:
    """Another value in a row."""
    history.tables[table][row].update(values)


def _another_backfill(history: History) -> None:
    history.tables["backfill"].append({**_backfill("c", "succeeded"), "requested_at": at(5)})


def _swap(history: History, topic: Topic, first: int, second: int) -> None:
    events = history.events[str(topic)]
    events[first], events[second] = events[second], events[first]


T = Topic
BAD: list[tuple[str, str, Bad]] = [
    ("every_request_is_answered", "no answer", lambda h: h.events["backfill-events"].__delitem__(slice(0, 3, 2))),
    ("every_request_is_answered", "two outcomes", lambda h: put(h, T.BACKFILL_EVENTS, event("b", "BackfillRejected"))),
    ("every_request_is_answered", "planned and no row", lambda h: h.tables["backfill"].clear()),
    ("every_backfill_ends_once", "two ends", lambda h: put(h, T.BACKFILL_EVENTS, event("b", "BackfillFailed"))),
    ("every_backfill_ends_once", "no end", lambda h: h.events["backfill-events"].pop(1)),
    ("every_backfill_ends_once", "another end", lambda h: change(h, "backfill", 0, state="succeeded")),
    ("every_interval_has_its_outcome", "a day is missing", lambda h: h.tables["backfill_interval"].pop()),
    ("every_interval_has_its_outcome", "a run is missing", lambda h: h.tables["run"].pop()),
    ("every_interval_has_its_outcome", "a failing day succeeded", lambda h: change(h, "run", 0, state="succeeded")),
    ("every_interval_has_its_outcome", "cancelled by nobody", lambda h: change(h, "run", 1, state="cancelled")),
    ("every_interval_has_its_outcome", "the wrong end", lambda h: change(h, "backfill", 0, state="succeeded")),
    ("every_interval_has_its_outcome", "nobody asked", lambda h: h.wishes.clear()),
    ("one_active_backfill_of_an_interval", "together", _another_backfill),
    ("limits_hold_in_the_rows", "of a backfill", lambda h: h.sampled.update({"b": 2})),
    ("limits_hold_in_the_rows", "of a pipeline", lambda h: h.sampled.update({"pipeline:p": 2})),
    ("limits_hold_in_the_events", "two live", lambda h: _swap(h, T.RUN_EVENTS, 1, 2)),
    ("limits_hold_at_work", "two at work", lambda h: h.notes.append(note(1, 1, "2001-01-01", 103.5))),
    ("one_attempt_of_an_interval_at_a_time", "a zombie at work", lambda h: h.notes.append(note(2, 1, "2001-01-02", 107))),
    ("every_run_ends_once", "ends twice", lambda h: put(h, T.RUN_EVENTS, run_event("RunSucceeded", 2, 2, 9))),
    ("every_run_ends_once", "no end", lambda h: h.events["run-events"].pop()),
    ("every_run_ends_once", "of another attempt", lambda h: change(h, "run", 1, attempt=3)),
    ("attempts_follow_one_another", "an old attempt's event", lambda h: put(h, T.RUN_EVENTS, run_event("RunStarted", 2, 1, 9))),
    ("attempts_follow_one_another", "started twice", lambda h: put(h, T.RUN_EVENTS, run_event("RunStarted", 2, 2, 9))),
    ("ends_were_reported", "a success that nobody reported", lambda h: h.events["run-reports"].clear()),
    ("ends_were_reported", "an old attempt's report", lambda h: change(h, "run", 0, error={"message": FORGED})),
    ("every_event_once", "doubled", lambda h: put(h, T.RUN_EVENTS, copy.deepcopy(h.of(T.RUN_EVENTS)[0]))),
    ("events_are_in_order", "goes back", lambda h: _swap(h, T.RUN_EVENTS, 0, 3)),
    ("a_backfill_is_told_in_order", "an end before the plan", lambda h: _swap(h, T.BACKFILL_EVENTS, 0, 1)),
    ("a_backfill_is_told_in_order", "on after its end", lambda h: put(h, T.BACKFILL_EVENTS, event("b", "BackfillPaused"))),
    ("nothing_is_put_aside", "a dead letter", lambda h: put(h, T.DEAD_LETTERS, event("b", "RunReported"))),
    ("each_miss_is_told_once", "told twice", lambda h: put(h, T.DEADLINE_MISSED, event(2, "DeadlineMissed"))),
    ("each_miss_is_told_once", "not told", lambda h: h.events["deadline-missed"].clear()),
    ("each_miss_is_told_once", "told and not missed", lambda h: put(h, T.DEADLINE_MISSED, event(1, "DeadlineMissed"))),
    ("each_deadline_is_judged_right", "missed though done", lambda h: change(h, "run", 1, finished_at=at(4))),
    ("each_deadline_is_judged_right", "met though late", lambda h: change(h, "deadline", 1, state="met")),
    ("each_deadline_is_judged_right", "never judged", lambda h: change(h, "deadline", 1, state="armed")),
    ("each_run_has_its_deadlines", "none", lambda h: h.tables["deadline"].pop(0)),
    ("each_run_has_its_deadlines", "two", lambda h: h.tables["deadline"].append(_deadline(3, 1, "void", at(5)))),
    ("each_miss_has_its_callback", "none", lambda h: h.tables["callback"].clear()),
    ("each_miss_has_its_callback", "one too many", lambda h: h.tables["callback"].append(_callback(1))),
    ("each_callback_ends_once", "open", lambda h: change(h, "callback", 0, state="running")),
    ("each_callback_ends_once", "told twice", lambda h: put(h, T.CALLBACK_EVENTS, event(2, "CallbackSucceeded"))),
    ("each_callback_is_called", "never", lambda h: h.calls.clear()),
    ("each_callback_is_called", "twice in one attempt", lambda h: h.calls.append({"deadline": 2, "key": "k"})),
    ("each_callback_is_called", "under two keys", lambda h: h.calls.append({"deadline": 2, "key": "other"})),
    ("each_callback_is_called", "for nothing", lambda h: h.calls.append({"deadline": 1, "key": "k"})),
    ("everything_comes_to_its_end", "stuck", lambda h: h.undrained.append("b")),
    ("nothing_is_held", "a transaction", lambda h: h.held.append({"state": "idle in transaction"})),
    ("no_row_is_claimed", "a slot", lambda h: change(h, "run", 1, slot=1)),
    ("no_row_is_claimed", "a live run", lambda h: change(h, "run", 1, state="running")),
    ("no_row_is_claimed", "an active backfill", lambda h: change(h, "backfill", 0, state="running")),
    ("no_row_is_claimed", "a callback's claim", lambda h: change(h, "callback", 0, token="t")),
    ("no_row_is_claimed", "an armed deadline", lambda h: change(h, "deadline", 0, state="armed")),
    ("everything_is_published", "an event waits", lambda h: h.tables["run_starter_outbox"].append({"id": 1})),
    ("everything_is_published", "a batch is open", lambda h: change(h, "run_starter_relay", 0, batch_ids=[1])),
    ("everything_is_read", "behind", lambda h: change(h, "run_starter_shard_offset", 0, next_offset=8)),
    ("the_output_is_right", "of the old attempt", lambda h: h.outputs.update({SECOND: content(*SECOND, "b", 1)})),
    ("the_output_is_right", "not there", lambda h: h.outputs.clear()),
    ("no_output_without_work", "of nobody", lambda h: h.outputs.update({("p", "2001-01-03"): "{}"})),
]  # fmt: skip


@pytest.mark.parametrize(("promise", "what", "spoil"), BAD, ids=[f"{p}: {what}" for p, what, _ in BAD])
def test_each_way_of_breaking_it_is_found(promise: str, what: str, spoil: Bad) -> None:
    history = good()
    spoil(history)
    assert promise in {violation.promise for violation in check(history)}


def test_every_promise_has_a_bad_history() -> None:
    assert {promise for promise, _, _ in BAD} == set(PROMISES)
