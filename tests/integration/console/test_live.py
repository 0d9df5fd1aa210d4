"""Changes are seen at once, also by viewers that slept, and after the console was killed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.console import Told, Web, start_console
from tests.support.installation import Installation


def until_done(events: Iterator[Told], id: str) -> list[Told]:
    """What a viewer is told up to a backfill's end."""
    seen: list[Told] = []
    for told in events:
        seen.append(told)
        ends = [
            each for each in bodies([told]) if each.get("backfill_id") == id and each["type"] == "BackfillSucceeded"
        ]
        if ends:
            return seen
    raise AssertionError(f"the stream ended: {seen}")


def bodies(seen: list[Told]) -> list[dict[str, Any]]:
    return [each for told in seen if told.name == "changes" for each in told.document["events"]]


def began(events: Iterator[Told]) -> None:
    assert next(events).name == "hello"


def test_a_viewer_sees_each_run_of_its_backfill(web: Web, place: Installation) -> None:
    with web.events(backfill="watched") as events, web.events() as others:
        began(events)
        began(others)
        place.request("p", "2010-01-01", "2010-01-20", id="watched")
        seen, of_others = until_done(events, "watched"), until_done(others, "watched")
    mine = [each for each in bodies(seen) if each["topic"] == "run-events"]
    assert sum(each["type"] == "RunSucceeded" for each in mine) == 20
    assert {each["run_state"] for each in mine if each["type"] in ("RunStarted", "RunSucceeded")} == {
        "running",
        "succeeded",
    }
    assert "BackfillPlanned" in {each["type"] for each in bodies(seen)}
    moved = sum(told.document["moved"].get("watched", 0) for told in of_others if told.name == "changes")
    assert (moved, [each for each in bodies(of_others) if each["topic"] == "run-events"]) == (len(mine), [])


def test_a_viewer_that_slept_catches_up(web: Web, place: Installation) -> None:
    with web.events() as events:
        began(events)
        place.request("p", "2010-02-01", "2010-02-02", id="before")
        last = until_done(events, "before")[-1].id
    place.request("p", "2010-03-01", "2010-03-05", id="asleep")
    place.wait_state("asleep", "succeeded")
    place.wait_published()
    with web.events(last_id=last, backfill="asleep") as events:
        began(events)
        seen = until_done(events, "asleep")
    types = [each["type"] for each in bodies(seen) if each.get("backfill_id") == "asleep"]
    assert (types.count("BackfillPlanned"), types.count("RunSucceeded")) == (1, 5)


def test_a_viewer_of_a_console_that_was_killed_misses_nothing_in_the_next_one(place: Installation) -> None:
    first = start_console(place)
    with first.events() as events:
        began(events)
        place.request("p", "2010-04-01", "2010-04-02", id="seen")
        last = until_done(events, "seen")[-1].id
    first.replica.kill()
    place.request("p", "2010-05-01", "2010-05-05", id="unseen")
    place.wait_state("unseen", "succeeded")
    place.wait_published()
    second = start_console(place)
    # It may have to read for a moment.
    with second.events(backfill="unseen") as events:
        began(events)
        place.request("p", "2010-06-01", "2010-06-01", id="later")
        until_done(events, "later")
    with second.events(last_id=last, backfill="unseen") as events:
        began(events)
        seen = until_done(events, "unseen")
    types = [each["type"] for each in bodies(seen) if each.get("backfill_id") == "unseen"]
    assert types.count("RunSucceeded") == 5


@pytest.mark.parametrize("id", ["of another", "0.0", "f" * 16])
def test_who_cannot_catch_up_is_told_to_begin_anew(web: Web, id: str) -> None:
    with web.events(last_id=id) as events:
        began(events)
        assert next(events).name == "reload"


def test_a_console_that_stops_ends_its_streams_and_itself(place: Installation) -> None:
    web = start_console(place)
    with web.events() as events:
        began(events)
        web.replica.tell_to_stop()
        # It may have begun to read only now, which viewers are told, and read what others published.
        assert {each.name for each in events} <= {"reload", "changes"}
    web.replica.process.wait(10)
