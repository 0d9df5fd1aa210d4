"""Notifications of freed slots and seats, and whom they concern."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrofill_core.store.giving_way import Rank
from retrofill_core.store.hosts import SEAT_CHANNEL
from retrofill_core.store.runs import SLOT_CHANNEL
from run_starter.claims.checks import Claims
from run_starter.handler import StarterHandler
from run_starter.memory import (
    SUSPECTS_KEY,
    Memory,
    key_in,
    pipeline_key,
    slot_freed,
    suspect_ended,
)
from run_starter.sharing import Shortage

SHORT = Shortage(False, Rank(0, datetime(2020, 1, 1, tzinfo=UTC)))

# notifications of slots


@given(st.integers(0, 2**63), st.integers(0, 10_000))
def test_a_notification_names_the_pipeline_and_the_shard(no: int, shard: int) -> None:
    assert key_in(slot_freed(no, shard)) == (pipeline_key(no), shard)
    assert key_in(suspect_ended(shard)) == (SUSPECTS_KEY, shard)


@pytest.mark.parametrize(
    "payload", ["", "7", "7/", "/0", "7/0/1", "-7/0", "7/-1", "a/b", " 7/0", "later", "suspect", "suspect/"]
)
def test_another_notification_names_none(payload: str) -> None:
    assert key_in(payload) is None


class Played(Claims):
    """A handler without servers."""

    def __init__(self) -> None:
        super().__init__(None, expected=1)  # type: ignore[arg-type]
        self.handler = object.__new__(StarterHandler)
        self.handler._claims = self


def test_a_slot_that_a_shard_freed_itself_is_no_news_to_it() -> None:
    played = Played()
    for partition in range(3):
        played.memory[partition] = Memory(pipelines={7} if partition < 2 else set())
    told = played.handler.notified(SLOT_CHANNEL, slot_freed(7, 0), [0, 1, 2])
    assert {shard: dict(checks) for shard, checks in told.items() if checks} == {1: {pipeline_key(7): 0.0}}


def test_the_end_of_a_suspect_is_news_to_all_other_shards() -> None:
    """Whose suspects wait for it is in the rows."""
    told = Played().handler.notified(SLOT_CHANNEL, suspect_ended(0), [0, 1])
    assert told == {1: {SUSPECTS_KEY: 0.0}}


def test_a_free_seat_is_news_to_who_waits_for_one() -> None:
    played = Played()
    played.memory[1] = Memory(starving={"default": {pipeline_key(7): SHORT}, "gpu": {pipeline_key(8): SHORT}})
    both = {pipeline_key(7): 0.0, pipeline_key(8): 0.0}
    for payload, checked in {"": both, "default": {pipeline_key(7): 0.0}, "other": {}}.items():
        told = played.handler.notified(SEAT_CHANNEL, payload, [0, 1])
        assert {shard: dict(checks) for shard, checks in told.items() if checks} == ({1: checked} if checked else {})
