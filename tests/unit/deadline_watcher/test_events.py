"""Events about misses: complete, split when there are very many, and with human-readable times in
the pipeline's time zone.
"""

from datetime import UTC, datetime, timedelta

import pytest
from tests.support.rows import a_deadline

from deadline_watcher.verdicts import callback, digest, in_digest, missed, recovered
from retrofill_core.contract.base import decode
from retrofill_core.store.deadlines import BackfillFacts
from retrofill_core.store.digests import Window

MAX_BYTES = 900_000
AT = datetime(2024, 3, 1, 23, 30, tzinfo=UTC)
BACKFILL = BackfillFacts(runs=10, runs_done=4, timezone="Europe/Paris")


def row(id=7, **more):
    given = {"id": id, "due_at": AT, "interval_start": AT, "interval_end": AT + timedelta(days=1), "run_attempt": 2}
    return a_deadline(**given | more)


def missed_by(one, late=1.5):
    return missed(one, BACKFILL, {}, one.due_at + timedelta(seconds=late))


def kwargs_of(one, timezone):
    event = missed_by(one)
    return callback(one, "page", event, event, timezone, AT).kwargs


def test_texts_in_kwargs_are_in_the_pipelines_time_zone():
    one = row(
        kwargs={
            "text": "{run.logical_date:%Y-%m-%d} {pipeline} {{x}} {deadline.late_seconds:.1f}",
            "n": [1, "{run.id}"],
        }
    )
    assert kwargs_of(one, BACKFILL.timezone) == {"text": "2024-03-02 p {x} 1.5", "n": [1, "3"]}


def test_what_cannot_be_expanded_is_called_as_it_is_written():
    # This definition was accepted with short names; an earlier release may have accepted any name.
    for kwargs in ({"x": "{run.attempt:c}"}, {"x": "{pipeline}" * 1500}, {"x": "{gone}"}):
        one = row(kwargs=kwargs, pipeline="p" * 200)
        assert kwargs_of(one, "UTC") == kwargs


def test_moments_at_the_calendars_edge_are_told_in_utc():
    first = datetime.min.replace(tzinfo=UTC)
    one = row(interval_start=first, kwargs={"day": "{run.logical_date}"})
    assert kwargs_of(one, "America/New_York") == {"day": "0001-01-01T00:00:00+00:00"}


def test_a_deadline_of_a_backfill_has_no_run():
    one = row(
        run_id=None, interval_start=None, interval_end=None, kwargs={"t": "{backfill.runs_done} of {backfill.runs}"}
    )
    event = missed_by(one)
    assert (event.scope, event.run_id, event.interval_start) == ("backfill", None, None)
    assert kwargs_of(one, "UTC") == {"t": "4 of 10"}


@pytest.mark.parametrize(("count", "several"), [(1, False), (500, False), (3000, True)])
def test_a_digest_of_very_many_comes_in_parts_that_fit_a_message(count, several):
    long = {"alert": "x" * 200, "pipeline": "p" * 200, "backfill_id": "b" * 200, "decided_at": AT}
    misses = [in_digest(row(id, **long), BACKFILL, {}) for id in range(count)]
    parts = digest(Window(0, "p", "slow", AT), "https://example.org/" + "x" * 1900, misses, count + 7, AT, MAX_BYTES)
    assert (len(parts) > 1) is several
    assert {(part.count, part.not_listed, part.parts) for part in parts} == {(count + 7, 7, len(parts))}
    assert [part.part for part in parts] == list(range(1, len(parts) + 1))
    assert [each.deadline_id for part in parts for each in part.missed] == list(range(count))
    for part in parts:
        assert len(part.encode()) <= MAX_BYTES
        assert decode(part.encode()) == part


def test_how_late_is_from_the_moment_to_the_end():
    assert recovered(row(), AT + timedelta(minutes=2)).late_seconds == 120
