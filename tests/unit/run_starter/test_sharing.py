"""Slots are shared within every limit, to the backfill with the fewest live runs first, and briefly
left to such backfills of other shards.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from run_starter.sharing import YIELD_SECONDS, Candidate, Pipeline, free_slots, share


@st.composite
def situations(draw):
    """Pipelines, candidates with some of their slots (other backfills' live runs have others), and
    a number of drivers.
    """
    pipelines, candidates = {}, []
    for no in range(draw(st.integers(1, 3))):
        taken = draw(st.sets(st.integers(1, 8)))
        rivals = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
        pipelines[no] = Pipeline(draw(st.integers(1, 8)), frozenset(taken), rivals, draw(st.floats(0, 10)))
        left = len(taken)
        for n in range(draw(st.integers(0, 4))):
            own = draw(st.sets(st.integers(1, 6), max_size=left))
            left -= len(own)
            candidates.append(Candidate(f"{no}-{n}", no, draw(st.integers(1, 6)), frozenset(own)))
    return candidates, pipelines, draw(st.integers(0, 10))


@given(situations())
def test_no_limit_is_exceeded_and_no_slot_given_twice(situation):
    candidates, pipelines, drivers = situation
    made = share(*situation)
    assert sum(map(len, made.slots.values())) <= drivers
    shared = {no: [] for no in pipelines}
    for each in candidates:
        own = [slot for slot, _ in made.slots.get(each.id, ())]
        assert not set(own) & each.slots
        assert len(set(own)) == len(own)
        assert not own or len(own) + len(each.slots) <= each.limit
        shared[each.pipeline_no] += [slot for _, slot in made.slots.get(each.id, ())]
    for no, slots in shared.items():
        assert not set(slots) & pipelines[no].slots
        assert len(set(slots)) == len(slots)
        assert not slots or len(slots) + len(pipelines[no].slots) <= pipelines[no].limit


@given(situations())
def test_what_is_not_used_is_left_to_somebody_or_has_no_driver(situation):
    candidates, pipelines, _ = situation
    made = share(*situation)
    for each in candidates:
        no = each.pipeline_no
        own_room = each.limit - len(each.slots) - len(made.slots.get(each.id, ()))
        given = sum(len(made.slots.get(other.id, ())) for other in candidates if other.pipeline_no == no)
        if own_room > 0 and pipelines[no].limit - len(pipelines[no].slots) - given > 0:
            assert no in made.left | made.short_of_drivers


@given(situations())
def test_nobody_gets_a_slot_while_a_poorer_one_of_its_pipeline_could_use_it(situation):
    candidates, _, _ = situation
    made = share(*situation)
    live = {each.id: len(each.slots) + len(made.slots.get(each.id, ())) for each in candidates}
    for rich in candidates:
        for poor in candidates:
            if rich.id in made.slots and poor.pipeline_no == rich.pipeline_no and live[poor.id] < poor.limit:
                assert live[rich.id] <= live[poor.id] + 1


@given(taken=st.frozensets(st.integers(1, 20)), limit=st.integers(1, 20))
def test_free_slots_are_the_lowest_and_with_the_taken_ones_hold_the_limit(taken, limit):
    free = free_slots(taken, limit)
    assert free == sorted(set(free) - taken)
    assert len(free) == max(0, limit - len(taken))
    assert all(slot in taken or slot in free for slot in range(1, (free[-1] if free else 0) + 1))


def test_slots_are_given_lowest_first_to_the_earlier_of_two():
    candidates = [Candidate("a", 1, 4, frozenset({2})), Candidate("b", 1, 4, frozenset())]
    made = share(candidates, {1: Pipeline(5, frozenset({1}))}, 10)
    assert made.slots == {"b": [(1, 2), (2, 4)], "a": [(1, 3), (3, 5)]}


@pytest.mark.parametrize(
    ("rivals", "yielded_for", "started", "left"),
    [
        ((), 0.0, 2, False),
        ((3,), 0.0, 2, False),
        ((2,), 0.0, 1, True),  # an equally rich rival: one slot is taken, then left to it
        ((1,), 0.0, 1, True),
        ((0, 1), 0.0, 0, True),
        ((0, 1, 1), 4.999, 0, True),
        ((0, 1, 1), YIELD_SECONDS, 2, False),
    ],
)
def test_a_slot_is_left_to_each_poorer_rival_for_five_seconds(rivals, yielded_for, started, left):
    mine = Candidate("a", 1, 4, frozenset({1, 2}))
    made = share([mine], {1: Pipeline(4, frozenset({1, 2}), rivals, yielded_for)}, 10)
    assert (len(made.slots.get("a", ())), bool(made.left)) == (started, left)


def test_where_nothing_could_start_nothing_is_left():
    full = Candidate("a", 1, 2, frozenset({1, 2}))
    assert not share([full], {1: Pipeline(4, frozenset({1, 2}), (0,))}, 10).left
    made = share([Candidate("a", 1, 2, frozenset({1}))], {1: Pipeline(4, frozenset({1}), (0,))}, 0)
    assert (made.left, made.short_of_drivers) == (set(), {1})
