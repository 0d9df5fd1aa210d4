"""Reading dead letters, which may be large and many."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, cast

import pytest

from retrofill_tools.client import dead_letters
from retrofill_tools.client.dead_letters import Letter, newest

PARTITIONS = 4


def letter(partition: int, offset: int, value: bytes = b"x") -> Letter:
    return Letter(partition, offset, 1000 * offset + partition, None, value, ())


def alive() -> int:
    return sum(isinstance(each, Letter) for each in gc.get_objects())


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A topic with 50 letters in each partition; how many letters were held while they were read."""
    numbers: list[int] = []

    def read_range(_: Any, __: str, partition: int, start: int, end: int) -> Iterator[Letter]:
        for offset in range(start, end):
            yield letter(partition, offset)
            numbers.append(alive())

    monkeypatch.setattr(dead_letters, "partitions_of", lambda *_: list(range(PARTITIONS)))
    monkeypatch.setattr(dead_letters, "bounds_of", lambda *_: (0, 50))
    monkeypatch.setattr(dead_letters, "read_range", read_range)
    # The collector lists only what is made from now on: whatever other tests left is a lot.
    gc.freeze()
    yield numbers
    gc.unfreeze()


def test_the_newest_are_found_and_no_more_are_held(held: list[int]) -> None:
    before = alive()
    found = newest(cast(Any, None), "t", 10)
    assert [each.place for each in found] == [f"{p}:{o}" for o in (49, 48, 47) for p in (3, 2, 1, 0)][:10]
    assert len(held) == PARTITIONS * 20
    assert max(held) - before <= 11


def test_of_a_long_value_the_start_is_shown() -> None:
    cut = letter(0, 1, "\u65e5".encode() * 100).cut(10)
    shown = cut.as_json()
    assert (shown["value"], shown["value_bytes"]) == ("\u65e5" * 3, 300)
    whole = letter(0, 1).cut(10).as_json()
    assert whole["value"] == "x"
    assert "value_bytes" not in whole
    assert "value_base64" in letter(0, 1, b"\xff" * 20).cut(10).as_json()
    assert "value_base64" in letter(0, 1, "\u65e5".encode()[:2]).as_json()
