"""The request that runs again what an ended backfill left undone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import select, update
from tests.support.both_stores import DAY, NOW, START, make_backfill, put
from tests.support.sessions import MemoryStore

from backfill_planner.requests import columns_of
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.deadlines import Subject, insert_deadlines
from retrofill_core.domain.backfill import ReprocessBehavior
from retrofill_core.domain.deadline import Arming, DeadlineState, finish_by
from retrofill_core.store import tables as t
from retrofill_tools.client.backfills import find_backfill
from retrofill_tools.client.requests import COPIED, NOT_COPIED, OF_DEADLINE, requested_again


def ended(conn: Any, id: str, first: int, *states: str, **more: Any) -> None:
    """A backfill whose runs, the first one of day number ``first``, ended in these states."""
    make_backfill(conn, id, len(states), START + first * DAY)
    mine = select(t.run.c.id).where(t.run.c.backfill_id == id).order_by(t.run.c.position)
    for run, state in zip(conn.execute(mine).scalars().all(), states, strict=True):
        conn.execute(update(t.run).where(t.run.c.id == run).values(state=state, finished_at=NOW))
    conn.execute(update(t.backfill).where(t.backfill.c.id == id).values(state="failed", ended_at=NOW, **more))


@pytest.mark.parametrize(
    ("behavior", "again"),
    [("none", "failed"), ("failed", "failed"), ("completed", "completed")],
)
def test_what_was_to_replace_a_success_still_is_and_what_succeeded_since_is_left_out(behavior: str, again: str) -> None:
    def work(conn: Any) -> Any:
        ended(conn, "before", 0, "succeeded")
        ended(conn, "b1", 0, "cancelled", "failed", "succeeded", "failed", reprocess_behavior=behavior)
        ended(conn, "since", 1, "succeeded")
        request = requested_again(conn, find_backfill(conn, "b1"), "ada").request
        return request.reprocess_behavior == ReprocessBehavior(again), [*request.intervals]

    said = MemoryStore().play([put(), ("a", work)])[-1]
    assert said == [True, [START, START + 3 * DAY]]


def test_each_option_of_a_request_is_copied_or_left_out_for_a_reason() -> None:
    parts = (set(COPIED), set(OF_DEADLINE), set(NOT_COPIED))
    assert set.union(*parts) == set(BackfillRequested.model_fields)
    assert sum(map(len, parts)) == len(BackfillRequested.model_fields)
    assert all(NOT_COPIED.values())


LATER, PAST = datetime(2999, 1, 1, tzinfo=UTC), datetime(2001, 1, 1, tzinfo=UTC)
# What the ended backfill was requested with: options that are not as by default → those of the new request.
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "review": ({"publish": "review"}, {"publish": "review"}),
    "budget": ({"budget": {"failed_runs": 2, "core_hours": 1.5}}, {"budget": {"failed_runs": 2, "core_hours": 1.5}}),
    "until": ({"budget": {"failed_runs": 2, "until": LATER}}, {"budget": {"failed_runs": 2, "until": LATER}}),
    "until the past": ({"budget": {"failed_runs": 2, "until": PAST}}, {"budget": {"failed_runs": 2}}),
    "only until the past": ({"budget": {"until": PAST}}, {}),
    "deadline": (
        {"finish_by": LATER, "finish_by_callback": "page"},
        {"finish_by": LATER, "finish_by_callback": "page"},
    ),
    "past deadline": ({"finish_by": PAST, "finish_by_callback": "page"}, {}),
    "all": (
        {
            "batch_size": 1,
            "run_backwards": True,
            "on_run_failure": "pause",
            "conf": {"a": 1},
            "latest_code": True,
            "publish": "review",
            "reprocess_behavior": "completed",
            "budget": {"core_hours": 2.0},
            "finish_by": LATER,
        },
        {
            "batch_size": 1,
            "run_backwards": True,
            "on_run_failure": "pause",
            "conf": {"a": 1},
            "latest_code": True,
            "publish": "review",
            "reprocess_behavior": "completed",
            "budget": {"core_hours": 2.0},
            "finish_by": LATER,
        },
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_options_of_the_ended_backfill_are_those_of_the_new_one(name: str) -> None:
    """As the planner stores them; the request must not be rejected for a moment that is past."""
    given, expected = OPTIONS[name]
    asked = BackfillRequested.model_validate({"pipeline": "p", "from": "2020-01-01", "to": "2020-01-01", **given})

    def work(conn: Any) -> Any:
        again = requested_again(conn, _as_planned(conn, asked), "ada")
        options = again.request.model_dump(exclude_unset=False, exclude={*NOT_COPIED, "max_active_runs", "pipeline"})
        wanted = BackfillRequested.model_validate(
            {"pipeline": "p", "intervals": [START], "reprocess_behavior": "failed", **expected}
        )
        same = options == wanted.model_dump(exclude={*NOT_COPIED, "max_active_runs", "pipeline"})
        return same, options, again.note

    same, options, note = MemoryStore().play([put(), ("a", work)])[-1]
    assert same, options
    assert (note is not None) == ("past" in name)


def _as_planned(conn: Any, asked: BackfillRequested) -> Any:
    """An ended backfill that was requested so."""
    stored = columns_of(asked) | {"on_run_failure": str(asked.on_run_failure), "review": asked.publish == "review"}
    ended(conn, "b1", 0, "failed", **stored)
    if asked.finish_by is not None:
        alert = finish_by(asked.finish_by, asked.finish_by_callback)
        subject = Subject(None, Arming(asked.finish_by, DeadlineState.ARMED))
        insert_deadlines(conn, "b1", "p", alert, [subject], 1)
    return find_backfill(conn, "b1")
