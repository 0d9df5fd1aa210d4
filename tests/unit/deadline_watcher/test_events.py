"""Events about misses: complete, split when there are very many, and with human-readable times in
the pipeline's time zone.
"""

from datetime import UTC, datetime, timedelta

import pytest

from deadline_watcher.events import callback, digest, facts, missed, recovered
from retrofill_core.contract.base import decode
from retrofill_core.store.subjects import BackfillFacts

MAX_BYTES = 900_000
AT = datetime(2024, 3, 1, 23, 30, tzinfo=UTC)
BACKFILL = BackfillFacts(runs=10, runs_done=4, timezone="Europe/Paris")


def row(id=7, **more):
    return {
        "id": id,
        "alert": "slow",
        "task": None,
        "pipeline": "p",
        "backfill_id": "b",
        "run_id": 3,
        "reference": "RUN_QUEUED_AT",
        "interval_seconds": 60.0,
        "due_at": AT,
        "callback": "page",
        "callback_kind": "function",
        "callback_options": {"at_most_once": False},
        "kwargs": {},
        "interval_start": AT,
        "interval_end": AT + timedelta(days=1),
        "run_state": "running",
        "run_attempt": 2,
    } | more


def fields(one, late=1.5):
    return facts(one, BACKFILL, {}, one["due_at"] + timedelta(seconds=late))


def test_texts_in_kwargs_are_in_the_pipelines_time_zone():
    one = row(
        kwargs={
            "text": "{run.logical_date:%Y-%m-%d} {pipeline} {{x}} {deadline.late_seconds:.1f}",
            "n": [1, "{run.id}"],
        }
    )
    made = callback(one, fields(one), missed(one, fields(one)), BACKFILL.timezone)
    assert made["kwargs"] == {"text": "2024-03-02 p {x} 1.5", "n": [1, "3"]}


def test_what_cannot_be_expanded_is_called_as_it_is_written():
    # This definition was accepted with short names; an earlier release may have accepted any name.
    for kwargs in ({"x": "{run.attempt:c}"}, {"x": "{pipeline}" * 1500}, {"x": "{gone}"}):
        one = row(kwargs=kwargs, pipeline="p" * 200)
        assert callback(one, fields(one), missed(one, fields(one)), "UTC")["kwargs"] == kwargs


def test_moments_at_the_calendars_edge_are_told_in_utc():
    first = datetime.min.replace(tzinfo=UTC)
    one = row(interval_start=first, kwargs={"day": "{run.logical_date}"})
    made = callback(one, fields(one), missed(one, fields(one)), "America/New_York")
    assert made["kwargs"] == {"day": "0001-01-01T00:00:00+00:00"}


def test_a_deadline_of_a_backfill_has_no_run():
    one = row(
        run_id=None, interval_start=None, interval_end=None, kwargs={"t": "{backfill.runs_done} of {backfill.runs}"}
    )
    event = missed(one, fields(one))
    assert (event.scope, event.run_id, event.interval_start) == ("backfill", None, None)
    assert callback(one, fields(one), event, "UTC")["kwargs"] == {"t": "4 of 10"}


@pytest.mark.parametrize(("count", "several"), [(1, False), (500, False), (3000, True)])
def test_a_digest_of_very_many_comes_in_parts_that_fit_a_message(count, several):
    rows = [row(id, alert="x" * 200, pipeline="p" * 200, backfill_id="b" * 200) for id in range(count)]
    window = {"id": 0, "alert": "slow", "pipeline": "p", "opened_at": AT, "closed_at": None}
    parts = digest(
        window, "https://example.org/" + "x" * 1900, [fields(each) for each in rows], len(rows) + 7, AT, MAX_BYTES
    )
    assert (len(parts) > 1) is several
    assert {(part.count, part.not_listed, part.parts) for part in parts} == {(count + 7, 7, len(parts))}
    assert [part.part for part in parts] == list(range(1, len(parts) + 1))
    assert [each.deadline_id for part in parts for each in part.missed] == list(range(count))
    for part in parts:
        assert len(part.encode()) <= MAX_BYTES
        assert decode(part.encode()) == part


def test_how_late_is_from_the_moment_to_the_end():
    assert recovered(row(), AT + timedelta(minutes=2)).late_seconds == 120
