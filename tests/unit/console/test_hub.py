"""One reader, many viewers: nobody misses an event, gets one twice, or is told of what it did not ask for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from retrofill_console import live as hubs
from retrofill_console.live import Event, Hub, shortened
from retrofill_core.contract.topics import Topic

Told = tuple[str, Any]


def run_event(offset: int, backfill: str = "b", place: int = 0) -> Event:
    return Event(place, offset, Topic.RUN_EVENTS, {"type": "RunStarted", "backfill_id": backfill, "n": offset})


def planned(offset: int, place: int = 1) -> Event:
    return Event(place, offset, Topic.BACKFILL_EVENTS, {"type": "BackfillPlanned", "backfill_id": "b", "n": offset})


def read(text: bytes) -> list[Told]:
    """The events in some bytes, as their names and documents; an id becomes one of its own."""
    found: list[Told] = []
    for part in text.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in part.split("\n") if line and not line.startswith(":"))
        if "id" in fields:
            found.append(("id", fields["id"]))
        if "event" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


async def told(stream: AsyncIterator[bytes], until: str) -> list[Told]:
    """What a viewer is told up to the first event of a name."""
    found: list[Told] = []
    async for text in stream:
        found += read(text)
        if any(name == until for name, _ in found):
            return found
    raise AssertionError(f"it ended before {until}: {found}")


def numbers(events: list[Told]) -> list[int]:
    return [each["n"] for name, document in events if name == "changes" for each in document["events"]]


def play(act: Callable[[Hub], Coroutine[Any, Any, Any]]) -> Any:
    async def with_hub() -> Any:
        hub = Hub()
        hub.start_at([10, 20])
        return await asyncio.wait_for(act(hub), 10)

    return asyncio.run(with_hub())


def test_a_viewer_is_told_of_its_own_backfill_s_runs_and_how_many_others_moved() -> None:
    async def act(hub: Hub) -> list[list[Told]]:
        streams = [hub.stream(None, backfill) for backfill in ("b", "c", None)]
        for each in streams:
            await told(each, "hello")
        hub.add([run_event(10), run_event(11, "c"), planned(20)])
        return [await told(each, "changes") for each in streams]

    of_b, of_c, of_all = play(act)
    assert [numbers(each) for each in (of_b, of_c, of_all)] == [[10, 20], [11, 20], [20]]
    for each in (of_b, of_c, of_all):
        assert dict(each)["changes"]["moved"] == {"b": 1, "c": 1}
        assert dict(each)["id"] == hubs.written([12, 21])


def test_events_that_come_together_are_sent_together_and_the_first_at_once() -> None:
    async def act(hub: Hub) -> Any:
        stream, loop = hub.stream(None, "b"), asyncio.get_running_loop()
        await told(stream, "hello")
        began = loop.time()
        hub.add([run_event(10)])
        first, at = await told(stream, "changes"), loop.time() - began
        for n in range(11, 15):
            hub.add([run_event(n)])
            await asyncio.sleep(0)
        return numbers(first), at, numbers(await told(stream, "changes")), loop.time() - began

    first, at, then, later = play(act)
    assert (first, then) == ([10], [11, 12, 13, 14])
    assert at < hubs.APART_SECONDS <= later + 0.01


def test_who_slept_gets_what_it_missed_once() -> None:
    async def act(hub: Hub) -> list[list[int]]:
        first = hub.stream(None, "b")
        await told(first, "hello")
        hub.add([run_event(10), planned(20)])
        id = str(dict(await told(first, "changes"))["id"])
        hub.add([run_event(11), planned(21)])
        await told(first, "changes")
        again = hub.stream(id, "b")
        caught_up = await told(again, "changes")
        hub.add([run_event(12)])
        return [numbers(caught_up), numbers(await told(again, "changes"))]

    assert play(act) == [[11, 21], [12]]


@pytest.mark.parametrize("id", ["", "a", "a.14.0", "9.14", "a.13", "b.14", "x.y", "ff.ff", "-1.14"])
def test_an_id_of_elsewhere_or_of_long_ago_is_told_to_begin_anew(id: str) -> None:
    async def act(hub: Hub) -> list[Told]:
        return await told(hub.stream(id, None), "reload")

    assert [name for name, _ in play(act)] == ["hello", "reload"]


def test_an_id_at_the_present_has_missed_nothing() -> None:
    async def act(hub: Hub) -> list[Told]:
        return await told(hub.stream(hubs.written([10, 20]), None), "changes")

    assert play(act)[-1] == ("changes", {"events": [], "moved": {}})


def test_what_is_forgotten_cannot_be_caught_up_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "KEPT", 4)

    async def act(hub: Hub) -> list[str]:
        slow, first = hub.stream(None, "b"), hub.stream(None, "b")
        await told(slow, "hello")
        await told(first, "hello")
        ids = [hubs.written([10, 20])]
        for n in range(10, 18, 2):
            hub.add([run_event(n), run_event(n + 1)])
            ids.append(str(dict(await told(first, "changes"))["id"]))
        names = [(await told(hub.stream(id, "b"), "changes" if n > 1 else "reload"))[-1][0] for n, id in enumerate(ids)]
        return [*names, (await told(slow, "reload"))[-1][0]]

    assert play(act) == ["reload", "reload", "changes", "changes", "changes", "reload"]


def test_a_new_beginning_is_told_to_all() -> None:
    async def act(hub: Hub) -> list[str]:
        stream = hub.stream(None, None)
        await told(stream, "hello")
        before = hub.version
        hub.start_at([0, 0, 0])
        assert hub.version > before
        names = [name for name, _ in await told(stream, "reload")]
        hub.add([planned(0)])
        return [*names, *(name for name, _ in await told(stream, "changes"))]

    assert play(act) == ["reload", "id", "changes"]


def test_trouble_with_kafka_is_told_and_that_it_is_over() -> None:
    async def act(hub: Hub) -> list[Told]:
        stream = hub.stream(None, None)
        await told(stream, "hello")
        hub.report("gone")
        hub.report("gone")
        found = await told(stream, "kafka")
        # Whoever comes now knows as well.
        found += await told(hub.stream(None, None), "kafka")
        hub.report(None)
        return found + await told(stream, "kafka")

    assert [document["error"] for name, document in play(act) if name == "kafka"] == ["gone", "gone", None]


def test_all_streams_end_when_it_closes_and_nobody_is_counted_any_more() -> None:
    async def act(hub: Hub) -> int:
        streams = [hub.stream(None, None) for _ in range(3)]
        for each in streams:
            await told(each, "hello")
        assert hub.viewers == 3
        hub.close()
        for each in streams:
            assert [text async for text in each] == []
        return hub.viewers

    assert play(act) == 0


def test_a_message_is_shortened_to_what_pages_need() -> None:
    body = {
        "type": "RunFailed",
        "version": 1,
        "in_reply_to": "x",
        "backfill_id": "b",
        "error": {"traceback": "long"},
        "outputs": ["/a"],
        "at": "2020-01-01",
        "message": "m" * 301,
    }
    assert shortened(Topic.RUN_EVENTS, body) == {
        "topic": "run-events",
        "type": "RunFailed",
        "backfill_id": "b",
        "at": "2020-01-01",
        "run_state": "failed",
    }
    lost = shortened(Topic.RUN_EVENTS, {"type": "RunAttemptLost", "state": "queued", "counted": True})
    assert (lost["run_state"], lost["counted"]) == ("queued", True)
    progress = {"type": "BackfillProgress", "runs": 3, "runs_by_state": {"queued": 3}}
    assert shortened(Topic.BACKFILL_EVENTS, progress) == {"topic": "backfill-events", **progress}
    assert "run_state" not in shortened(Topic.RUN_EVENTS, {"type": "TaskStateChanged", "state": "failed"})
