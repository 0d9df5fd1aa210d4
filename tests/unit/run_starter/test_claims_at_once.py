"""Claims in the transaction of the reports, and the notifications of freed slots."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrofill_core.bus.faults import Conflict, Fenced, Poison
from retrofill_core.bus.handler import ALL_ACTIVE
from retrofill_core.store.giving_way import Rank
from retrofill_core.store.hosts import SEAT_CHANNEL
from retrofill_core.store.runs import SLOT_CHANNEL
from run_starter.claims.checks import Claims
from run_starter.handler import StarterHandler
from run_starter.memory import (
    LEASES_KEY,
    SUSPECTS_KEY,
    Memory,
    backfill_key,
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


class Tx:
    """A transaction of shard 0 with scheduled checks."""

    def __init__(self, checks: Mapping[str, float], partition: int = 0) -> None:
        self.partition = partition
        self.checks = dict(checks)

    def schedule_check(self, key: str, after: float = 0.0) -> None:
        self.checks[key] = min(after, self.checks.get(key, after))


class Played(Claims):
    """A handler without servers, whose claims only record what they are to check."""

    def __init__(self) -> None:
        super().__init__(None, expected=1)  # type: ignore[arg-type]
        self.error: Exception | None = None
        self.checked: list[tuple[list[str], list[int]]] = []
        self.handler = object.__new__(StarterHandler)
        self.handler._claims = self
        self.handler._claim_later = set()

    def check(self, tx: Any, ids: Sequence[str], numbers: Sequence[int] = ()) -> int:
        self.checked.append((list(ids), list(numbers)))
        tx.schedule_check(pipeline_key(99), 5.0)
        if self.error is not None:
            raise self.error
        return 1

    def claim(self, tx: Tx) -> dict[str, float]:
        """The checks that are left after the batch."""
        self.handler._claim_at_once(tx)  # type: ignore[arg-type]
        return tx.checks


def due(partition: int = 0) -> Tx:
    """What an ended run leaves to check."""
    return Tx({backfill_key("b1"): 0.0, pipeline_key(7): 0.0}, partition)


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


# claims in the batch's transaction


def test_due_checks_run_at_once_and_only_what_they_schedule_is_left() -> None:
    played = Played()
    assert played.claim(due()) == {pipeline_key(99): 5.0}
    assert played.checked == [(["b1"], [7])]


def test_checks_of_later_and_those_that_lock_first_keep_their_own_transactions() -> None:
    played = Played()
    others = {backfill_key("b2"): 0.1, LEASES_KEY: 0.0, ALL_ACTIVE: 0.0, SUSPECTS_KEY: 0.0}
    assert played.claim(Tx(others)) == others
    assert played.checked == []
    assert played.claim(Tx({**others, **due().checks})) == {**others, pipeline_key(99): 5.0}
    assert played.checked == [(["b1"], [7])]


def test_a_check_that_wants_another_one_soon_gets_it_after_the_commit() -> None:
    played = Played()
    tx = Tx({pipeline_key(99): 0.0})
    assert played.claim(tx) == {pipeline_key(99): 5.0}


@pytest.mark.parametrize("error", [Conflict("x"), KeyError("x"), Poison("x")])
def test_where_a_claim_raises_the_batch_is_repeated_once_without_it(error: Exception) -> None:
    played = Played()
    played.error = error
    # A conflict, whatever it was: the messages are not at fault.
    with pytest.raises(Conflict, match="checks after reports"):
        played.claim(due())
    assert played.claim(due()) == due().checks
    played.error = None
    assert played.claim(due()) == {pipeline_key(99): 5.0}
    assert len(played.checked) == 2


def test_another_shard_goes_on_claiming_at_once() -> None:
    played = Played()
    played.error = KeyError("x")
    with pytest.raises(Conflict):
        played.claim(due(partition=0))
    played.error = None
    assert played.claim(due(partition=1)) == {pipeline_key(99): 5.0}
    assert played.claim(due(partition=0)) == due().checks


@pytest.mark.parametrize("error", [Fenced("x"), OSError("down")])
def test_what_concerns_the_whole_batch_is_left_to_it(error: Exception) -> None:
    played = Played()
    played.error = error
    with pytest.raises(type(error)):
        played.claim(due())
    played.error = None
    assert played.claim(due()) == {pipeline_key(99): 5.0}
