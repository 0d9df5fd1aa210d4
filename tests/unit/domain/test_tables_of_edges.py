"""Every pair of states of every state machine, compared with a second, handwritten copy of the
design.
"""

import itertools

import pytest

from retrofill import states
from retrofill_core.domain import backfill, callback, deadline, run

# entity → state → allowed next states
DESIGN = {
    "backfill": {
        "running": {"paused", "in_review", "cancelling", "succeeded", "failed"},
        "paused": {"running", "in_review", "cancelling", "succeeded", "failed"},
        "in_review": {"running", "cancelling"},
        "cancelling": {"cancelled", "failed"},
        "cancelled": set(),
        "succeeded": set(),
        "failed": set(),
    },
    "run": {
        "queued": {"starting", "cancelled"},
        "starting": {"running", "succeeded", "failed", "queued", "cancelled"},
        "running": {"succeeded", "failed", "publishing", "staged", "queued", "cancelled"},
        # By the end of its attempt, and by another publisher.
        "publishing": {"succeeded", "failed", "staged"},
        # Cancelled only while it waits for a review.
        "staged": {"publishing", "cancelled"},
        "succeeded": set(),
        "failed": set(),
        "cancelled": set(),
    },
    "attempt": {"starting": {"running", "ended"}, "running": {"ended"}, "ended": set()},
    "task_run": {
        "none": {"queued", "skipped", "upstream_failed", "cancelled"},
        "queued": {"running", "skipped", "upstream_failed", "cancelled"},
        "running": {"succeeded", "failed", "retrying", "cancelled"},
        "retrying": {"running", "cancelled"},
        "succeeded": set(),
        "failed": set(),
        "skipped": set(),
        "upstream_failed": set(),
        "cancelled": set(),
    },
    "deadline": {"armed": {"missed", "met", "void"}, "missed": set(), "met": set(), "void": set()},
    "callback": {
        "pending": {"running", "dropped"},
        "running": {"succeeded", "failed", "pending"},
        "succeeded": set(),
        "dropped": set(),
        # By a replay only.
        "failed": {"pending"},
    },
}
ALL = (*(m.MACHINE for m in (backfill, run, deadline, callback)), states.ATTEMPT_MACHINE, states.TASK_RUN_MACHINE)
MACHINES = {machine.entity: machine for machine in ALL}
PAIRS = [
    (entity, from_state, to) for entity, table in DESIGN.items() for from_state, to in itertools.product(table, table)
]


def test_there_are_six_machines_with_the_states_of_the_design():
    assert {entity: set(machine.states) for entity, machine in MACHINES.items()} == {
        entity: set(table) for entity, table in DESIGN.items()
    }


@pytest.mark.parametrize(("entity", "from_state", "to"), PAIRS)
def test_an_edge_is_there_exactly_where_the_design_has_it(entity, from_state, to):
    expected = to in DESIGN[entity][from_state]
    assert MACHINES[entity].allows(from_state, to) is expected
    assert (from_state in MACHINES[entity].sources(to)) is expected


@pytest.mark.parametrize("entity", DESIGN)
def test_terminal_states_are_those_that_nothing_follows(entity):
    assert MACHINES[entity].terminal == {state for state, following in DESIGN[entity].items() if not following}


@pytest.mark.parametrize("entity", DESIGN)
def test_a_state_that_does_not_exist_is_an_error_and_not_a_missing_edge(entity):
    with pytest.raises(KeyError):
        MACHINES[entity].sources("gone")
    with pytest.raises(KeyError):
        MACHINES[entity].allows("gone", "failed")


def test_every_state_that_is_entered_needs_a_row():
    with pytest.raises(ValueError, match="'elsewhere'"):
        states.machine("odd", {"here": ("elsewhere",)})


def test_active_backfills_are_the_ones_that_have_not_ended():
    assert set(backfill.ACTIVE) == {"running", "paused", "in_review", "cancelling"}
    assert set(backfill.ACTIVE) == set(backfill.MACHINE.states) - backfill.MACHINE.terminal


def test_live_runs_are_part_of_a_live_attempt_and_staged_ones_wait_for_one():
    assert set(run.LIVE) == {"starting", "running", "publishing"}
    assert set(run.GOING) == set(run.LIVE) | {"staged"}
    assert set(run.UNFINISHED) == set(run.GOING) | {"queued"}
    assert set(run.UNFINISHED) == set(run.MACHINE.states) - run.MACHINE.terminal


def test_an_accepted_run_is_not_executed_again():
    reached, new = set(), {"publishing"}
    while new:
        reached |= new
        new = {str(to) for state in new for to in run.MACHINE.edges[state]} - reached
    assert reached == {"publishing", "staged", "succeeded", "failed", "cancelled"}
    assert "cancelled" not in run.MACHINE.edges["publishing"]


def test_live_attempts_are_the_ones_that_have_not_ended():
    assert set(states.LIVE) == set(states.ATTEMPT_MACHINE.states) - states.ATTEMPT_MACHINE.terminal


@pytest.mark.parametrize("cancelling", [False, True])
@pytest.mark.parametrize("cause", [None, "user", "run_failure"])
@pytest.mark.parametrize("any_failed", [False, True])
def test_how_a_backfill_ends(cancelling, cause, any_failed):
    expected = "failed" if any_failed else "succeeded"
    if cancelling:
        expected = "cancelled" if cause == "user" else "failed"
    assert backfill.end_state(cancelling=cancelling, cancel_cause=cause, any_not_done=any_failed) == expected
