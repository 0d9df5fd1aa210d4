"""Slots and seats are shared within every limit, to the backfill with the fewest live attempts first,
and briefly left to such backfills of other shards. Of equals, the one served longest ago is first.
"""

from copy import deepcopy
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrofill_core.store.giving_way import Rank
from retrofill_core.store.hosts import Seat
from run_starter import sharing
from run_starter.sharing import RESERVED, FreeSeats, FreeSlots, PipelineSlots, Rivals, Shortage, most

POOLS = ["default", "gpu"]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
Candidate = partial(sharing.Candidate, since=NOW)
share = partial(sharing.share, now=NOW + RESERVED)


def ranks(*live, since=NOW):
    return tuple(Rank(each, since) for each in live)


def seats(count, *, warm=True, submits=True, rivals=None):
    """So many free seats of the default pool."""
    return {"default": FreeSeats([Seat(1, no, "h", warm, submits) for no in range(count)], rivals or Rivals())}


@st.composite
def rivals(draw):
    found = st.builds(Rank, st.integers(0, 4), st.sampled_from([NOW - RESERVED, NOW, NOW + RESERVED]))
    each = tuple(sorted(draw(st.lists(found, max_size=4))))
    return Rivals(each, frozenset(draw(st.lists(st.sampled_from(each)))) if each else frozenset())


@st.composite
def situations(draw):
    """Pipelines, candidates of two pools with some of their slots (other backfills' live attempts have
    others), and free seats of each pool.
    """
    pipelines, candidates = {}, []
    for no in range(draw(st.integers(1, 3))):
        taken = draw(st.sets(st.integers(1, 8)))
        pipelines[no] = PipelineSlots(draw(st.integers(1, 8)), frozenset(taken), draw(rivals()))
        left = len(taken)
        for n in range(draw(st.integers(0, 4))):
            own = draw(st.sets(st.integers(1, 6), max_size=left))
            left -= len(own)
            executor = draw(st.sampled_from(["pool", "spark-submit"]))
            pool = draw(st.sampled_from(POOLS))
            candidates.append(
                Candidate(f"{no}-{n}", no, draw(st.integers(1, 6)), frozenset(own), executor=executor, pool=pool)
            )
    free = {pool: draw(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=6)) for pool in POOLS}
    return (
        candidates,
        pipelines,
        {
            pool: FreeSeats(
                [Seat(host, n, "h", warm, submits, pool) for n, (warm, submits) in enumerate(free[pool])],
                draw(rivals()),
            )
            for host, pool in enumerate(POOLS)
        },
    )


@settings(max_examples=40)
@given(situations())
def test_no_limit_is_exceeded_and_no_slot_given_twice(situation):
    candidates, pipelines, offered = situation
    there = [seat for each in offered.values() for seat in each.free]
    made = share(*situation)
    given = [seat for slots in made.slots.values() for *_, seat in slots]
    left = [seat for each in offered.values() for seat in each.free]
    assert sorted([*given, *left], key=repr) == sorted(there, key=repr)
    assert len(given) <= most(candidates, pipelines)
    shared: dict[int, list[int]] = {no: [] for no in pipelines}
    for each in candidates:
        own = [slot for slot, _, _ in made.slots.get(each.id, ())]
        assert all(seat.pool == each.pool and seat.serves(each.executor) for *_, seat in made.slots.get(each.id, ()))
        assert not set(own) & each.slots
        assert len(set(own)) == len(own)
        assert not own or len(own) + len(each.slots) <= each.limit
        shared[each.pipeline_no] += [slot for _, slot, _ in made.slots.get(each.id, ())]
    for no, slots in shared.items():
        assert not set(slots) & pipelines[no].slots
        assert len(set(slots)) == len(slots)
        assert not slots or len(slots) + len(pipelines[no].slots) <= pipelines[no].limit


@settings(max_examples=40)
@given(situations())
def test_what_is_not_used_is_left_to_somebody_or_has_no_seat(situation):
    candidates, pipelines, _ = situation
    made = share(*situation)
    for each in candidates:
        no = each.pipeline_no
        own_room = each.limit - len(each.slots) - len(made.slots.get(each.id, ()))
        given = sum(len(made.slots.get(other.id, ())) for other in candidates if other.pipeline_no == no)
        if own_room > 0 and pipelines[no].limit - len(pipelines[no].slots) - given > 0:
            assert no in made.left.keys() | made.short.get(each.pool, {}).keys()


@settings(max_examples=40)
@given(situations())
def test_nobody_gets_a_slot_while_a_poorer_one_of_its_pipeline_could_use_it(situation):
    candidates, _, _ = situation
    made = share(*situation)
    live = {each.id: len(each.slots) + len(made.slots.get(each.id, ())) for each in candidates}
    for rich in candidates:
        for poor in candidates:
            same = (poor.pipeline_no, poor.executor, poor.pool) == (rich.pipeline_no, rich.executor, rich.pool)
            if rich.id in made.slots and same and live[poor.id] < poor.limit:
                assert live[rich.id] <= live[poor.id] + 1


@given(taken=st.frozensets(st.integers(1, 20)), limit=st.integers(1, 20))
def test_free_slots_are_the_lowest_and_with_the_taken_ones_hold_the_limit(taken, limit):
    slots, listed = FreeSlots(taken, limit), Listed(taken, limit)
    assert slots.left == listed.left == max(0, limit - len(taken))
    assert [slots.take() for _ in range(slots.left)] == [listed.take() for _ in range(listed.left)]


class Listed:
    """Free slots as a list, which takes as long to make as the limit is high."""

    def __init__(self, taken, limit):
        self._free = [slot for slot in range(1, limit + 1) if slot not in taken][: max(0, limit - len(taken))]

    @property
    def left(self):
        return len(self._free)

    def take(self):
        return self._free.pop(0)


@settings(max_examples=40)
@given(situations())
def test_slots_that_are_counted_are_shared_as_if_they_were_listed(situation):
    counted, listed = deepcopy(situation), deepcopy(situation)
    made, possible = share(*counted), most(*situation[:2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "FreeSlots", Listed)
        assert (made, possible, counted) == (share(*listed), most(*situation[:2]), listed)


def test_a_limit_may_be_as_high_as_it_likes():
    limit = 10**15
    candidates = [Candidate(id, 1, limit, frozenset({1})) for id in ("a", "b")]
    pipelines = {1: PipelineSlots(limit, frozenset({2, 3}))}
    assert most(candidates, pipelines) == limit - 2
    made = share(candidates, pipelines, seats(3))
    assert (places(made, "a"), places(made, "b")) == ([(2, 1), (3, 5)], [(2, 4)])


def places(made, id):
    """The slots that a backfill got, without seats."""
    return [tuple(slots) for *slots, _ in made.slots.get(id, ())]


def test_slots_are_given_lowest_first_to_the_earlier_of_two():
    candidates = [Candidate("a", 1, 4, frozenset({2})), Candidate("b", 1, 4, frozenset())]
    made = share(candidates, {1: PipelineSlots(5, frozenset({1}))}, seats(10))
    assert (places(made, "b"), places(made, "a")) == ([(1, 2), (2, 4)], [(1, 3), (3, 5)])


def test_of_equals_the_one_served_longest_ago_is_first():
    candidates = [Candidate("a", 1, 4, frozenset()), Candidate("b", 1, 4, frozenset(), since=NOW - RESERVED)]
    made = share(candidates, {1: PipelineSlots(9, frozenset())}, seats(2))
    assert (places(made, "b"), places(made, "a")) == ([(1, 1)], [(1, 2)])


# Rivals, those of them that are exhausted, how many start, and to how many the rest is left.
YIELDS = [
    (ranks(), (), 2, 0),
    (ranks(4), (), 2, 0),
    (ranks(2), (), 1, 1),  # an equally rich rival: one is taken, then one is left to it
    (ranks(1), (), 1, 1),
    (ranks(0, 1), (), 0, 2),
    (ranks(0, 1), ranks(0), 1, 1),
    (ranks(0, 1, 1), ranks(0, 1), 2, 0),
]


@pytest.mark.parametrize(("rivals", "exhausted", "started", "left_to"), YIELDS)
@pytest.mark.parametrize("what", [1, "default"])
def test_a_slot_or_a_seat_is_left_to_each_poorer_rival(what, rivals, exhausted, started, left_to):
    mine = Candidate("a", 1, 4, frozenset({1, 2}))
    them = Rivals(rivals, frozenset(exhausted))
    limits = {1: PipelineSlots(4, frozenset({1, 2}), them) if what == 1 else PipelineSlots(9, frozenset({1, 2}))}
    made = share([mine], limits, seats(2, rivals=them if what == "default" else None))
    assert (len(places(made, "a")), made.left) == (started, {1: what} if left_to else {})
    assert made.left_to == ({what: set(rivals) - set(exhausted)} if left_to else {})


@pytest.mark.parametrize(("waited", "first"), [(RESERVED, True), (RESERVED - timedelta(seconds=0.1), False)])
def test_an_equal_rival_goes_first_once_it_has_waited_for_a_second(waited, first):
    them = Rivals.of([Rank(0, NOW - waited)], NOW, frozenset())
    made = share([Candidate("a", 1, 4, frozenset())], {1: PipelineSlots(1, frozenset(), them)}, seats(1))
    assert (places(made, "a") == [], made.left == {1: 1}) == (first, first)
    assert share(
        [Candidate("a", 1, 4, frozenset({1}))], {1: PipelineSlots(2, frozenset({1}), them)}, seats(1)
    ).left == {1: 1}


def test_where_nothing_could_start_nothing_is_left():
    full = Candidate("a", 1, 2, frozenset({1, 2}))
    assert not share([full], {1: PipelineSlots(4, frozenset({1, 2}), Rivals(ranks(0)))}, seats(10)).left
    made = share(
        [Candidate("a", 1, 2, frozenset({1}))], {1: PipelineSlots(4, frozenset({1}), Rivals(ranks(0)))}, seats(0)
    )
    assert (made.left, made.short) == ({}, {"default": {1: Shortage(False, Rank(1, NOW))}})


def test_a_cold_seat_is_left_to_a_poorer_one_that_needs_it_warm():
    poor, rich = Candidate("a", 1, 1, frozenset()), Candidate("b", 2, 9, frozenset({1}), executor="spark-submit")
    limits = {1: PipelineSlots(1, frozenset()), 2: PipelineSlots(9, frozenset({1}))}
    made = share([poor, rich], limits, seats(1, warm=False))
    assert (made.slots, made.left, made.left_to) == ({}, {2: "default"}, {"default": {Rank(0, NOW)}})
    assert places(share([poor, rich], limits, seats(2, warm=False)), "b") == [(2, 2)]


def test_a_warm_seat_is_not_left_to_who_submits():
    poor, rich = Candidate("a", 1, 1, frozenset(), executor="spark-submit"), Candidate("b", 2, 9, frozenset({1}))
    limits = {1: PipelineSlots(1, frozenset()), 2: PipelineSlots(9, frozenset({1}))}
    assert places(share([poor, rich], limits, seats(1, submits=False)), "b") == [(2, 2)]


def test_who_got_one_and_lacks_another_waits_since_now():
    made = share([Candidate("a", 1, 2, frozenset())], {1: PipelineSlots(2, frozenset())}, seats(1))
    assert (places(made, "a"), made.short) == ([(1, 1)], {"default": {1: Shortage(False, Rank(1, NOW + RESERVED))}})


def test_a_cold_seat_serves_only_spark_submit_which_leaves_the_warm_ones():
    pool, submit = Candidate("a", 1, 1, frozenset()), Candidate("b", 2, 2, frozenset(), executor="spark-submit")
    limits = {1: PipelineSlots(1, frozenset()), 2: PipelineSlots(2, frozenset())}
    free = {"default": FreeSeats([*seats(1)["default"].free, Seat(2, 1, "g", False, True)])}
    made = share([pool, submit], limits, free)
    assert [(seat.host_id, seat.warm) for *_, seat in made.slots["a"] + made.slots["b"]] == [(1, True), (2, False)]
    cold = share([pool, submit], limits, seats(3, warm=False))
    assert (list(cold.short["default"]), list(cold.slots)) == ([1], ["b"])
    assert share([submit], {2: limits[2]}, seats(3, submits=False)).short == {
        "default": {2: Shortage(True, Rank(0, NOW))}
    }


def test_a_pool_without_seats_holds_nobody_up_in_another_one():
    mine, other = Candidate("a", 1, 2, frozenset(), pool="gpu"), Candidate("b", 1, 2, frozenset())
    made = share([mine, other], {1: PipelineSlots(4, frozenset())}, {**seats(5), "gpu": FreeSeats([])})
    assert (len(places(made, "b")), made.short) == (2, {"gpu": {1: Shortage(False, Rank(0, NOW))}})
