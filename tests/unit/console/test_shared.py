"""Answers are shared, and never older than the last event before they were asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from retrofill_console import console
from retrofill_console.console import Shared


class World:
    """Counts what is computed; ``open`` lets computations end."""

    def __init__(self) -> None:
        self.version = 0
        self.computed = 0
        self.most = 0
        self._now = 0
        self.open = threading.Event()
        self.open.set()
        self.began = threading.Event()
        self._lock = threading.Lock()
        self.shared = Shared(lambda: self.version)

    def work(self) -> bytes:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            self.computed += 1
            number, version = self.computed, self.version
        self.began.set()
        assert self.open.wait(10)
        with self._lock:
            self._now -= 1
        return f"{number} of {version}".encode()

    async def get(self, key: str = "k") -> str:
        return (await self.shared.get(key, self.work)).decode()


def play(act: Callable[[World], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(act(World()), 20))


def test_many_at_once_cost_one() -> None:
    async def act(world: World) -> Any:
        return set(await asyncio.gather(*(world.get() for _ in range(200)))), world.computed

    assert play(act) == ({"1 of 0"}, 1)


def test_what_was_asked_for_is_seen_before_its_event() -> None:
    async def act(world: World) -> Any:
        before = await world.get()
        world.shared.forget()
        return before, await world.get(), await world.get()

    assert play(act) == ("1 of 0", "2 of 0", "2 of 0")


def test_each_page_has_its_own() -> None:
    async def act(world: World) -> Any:
        await asyncio.gather(world.get("a"), world.get("b"))
        return world.computed

    assert play(act) == 2


def test_after_an_event_it_is_computed_again_and_without_one_not() -> None:
    async def act(world: World) -> list[str]:
        found = [await world.get(), await world.get()]
        world.version = 1
        return [*found, await world.get()]

    assert play(act) == ["1 of 0", "1 of 0", "2 of 1"]


def test_not_everything_has_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "FRESH_SECONDS", 0.0)

    async def act(world: World) -> list[str]:
        return [await world.get(), await world.get()]

    assert play(act) == ["1 of 0", "2 of 0"]


def test_who_asks_after_an_event_does_not_get_what_was_begun_before_it() -> None:
    async def act(world: World) -> Any:
        world.open.clear()
        early = asyncio.create_task(world.get())
        await asyncio.to_thread(world.began.wait, 10)
        world.version = 1
        late = [asyncio.create_task(world.get()) for _ in range(50)]
        await asyncio.sleep(0)
        world.open.set()
        return await early, set(await asyncio.gather(*late)), world.computed, world.most

    assert play(act) == ("1 of 0", {"2 of 1"}, 2, 1)


def test_an_error_is_everyone_s_and_the_next_one_tries_again() -> None:
    async def act(world: World) -> Any:
        found = await asyncio.gather(*(world.shared.get("k", fail) for _ in range(3)), return_exceptions=True)
        return [str(each) for each in found], await world.get()

    assert play(act) == (["gone"] * 3, "1 of 0")


def test_who_leaves_does_not_take_it_from_the_others() -> None:
    async def act(world: World) -> Any:
        world.open.clear()
        leaving, staying = asyncio.create_task(world.get()), asyncio.create_task(world.get())
        await asyncio.to_thread(world.began.wait, 10)
        leaving.cancel()
        world.open.set()
        return await staying, leaving.cancelled() or leaving.cancelling() > 0

    assert play(act) == ("1 of 0", True)


def test_the_oldest_answers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "MOST", 3)

    async def act(world: World) -> int:
        for n in range(5):
            await world.get(str(n))
        assert world.computed == 5
        await world.get("4")
        assert world.computed == 5
        await world.get("0")
        return world.computed

    assert play(act) == 6


def fail() -> bytes:
    raise OSError("gone")


def test_what_fails_leaves_nothing() -> None:
    async def act(world: World) -> int:
        for n in range(5):
            with pytest.raises(OSError, match="gone"):
                await world.shared.get(str(n), fail)
        return len(world.shared._locks)

    assert play(act) == 0


def test_after_an_error_there_is_still_one_at_a_time() -> None:
    async def act(world: World) -> Any:
        def fail_when_open() -> bytes:
            world.began.set()
            assert world.open.wait(10)
            return fail()

        world.open.clear()
        failing = asyncio.create_task(world.shared.get("k", fail_when_open))
        await asyncio.to_thread(world.began.wait, 10)
        world.began.clear()
        waiting = asyncio.create_task(world.get())
        await asyncio.sleep(0)
        world.open.set()
        with pytest.raises(OSError, match="gone"):
            await failing
        world.open.clear()
        await asyncio.to_thread(world.began.wait, 10)
        another = asyncio.create_task(world.get())
        await asyncio.sleep(0.1)
        world.open.set()
        return await waiting, await another, world.most

    assert play(act) == ("1 of 0", "2 of 0", 1)
