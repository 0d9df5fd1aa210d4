"""Every pair of states of every state machine, compared with a second, handwritten copy of the
design.
"""

import itertools

import pytest

from retrofill.domain import backfill, callback, deadline, machine, run, task_run

# entity → state → allowed next states
DESIGN = {
    "backfill": {
        "running": {"paused", "cancelling", "succeeded", "failed"},
        "paused": {"running", "cancelling", "succeeded", "failed"},
        "cancelling": {"cancelled", "failed"},
        "cancelled": set(),
        "succeeded": set(),
        "failed": set(),
    },
    "run": {
        "queued": {"starting", "cancelled"},
        "starting": {"running", "succeeded", "failed", "queued", "cancelled"},
        "running": {"succeeded", "failed", "publishing", "queued", "cancelled"},
        "publishing": {"succeeded", "failed"},
        "succeeded": set(),
        "failed": set(),
        "cancelled": set(),
    },
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
        "pending": {"running"},
        "running": {"succeeded", "failed", "pending"},
        "succeeded": set(),
        # By a replay only.
        "failed": {"pending"},
    },
}
MACHINES = {m.MACHINE.entity: m.MACHINE for m in (backfill, run, task_run, deadline, callback)}
PAIRS = [
    (entity, from_state, to) for entity, table in DESIGN.items() for from_state, to in itertools.product(table, table)
]


def test_there_are_five_machines_with_the_states_of_the_design():
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


def test_no_state_follows_itself():
    assert not [pair for pair in PAIRS if pair[1] == pair[2] and MACHINES[pair[0]].allows(pair[1], pair[2])]


def test_every_state_that_is_entered_needs_a_row():
    with pytest.raises(ValueError, match="'elsewhere'"):
        machine.machine("odd", {"here": ("elsewhere",)})


def test_active_backfills_are_the_ones_that_have_not_ended():
    assert set(backfill.ACTIVE) == {"running", "paused", "cancelling"}
    assert set(backfill.ACTIVE) == set(backfill.MACHINE.states) - backfill.MACHINE.terminal


def test_live_runs_are_those_that_hold_a_slot():
    assert set(run.LIVE) == {"starting", "running", "publishing"}
    assert set(run.UNFINISHED) == set(run.MACHINE.states) - run.MACHINE.terminal
    assert set(run.UNFINISHED) == set(run.LIVE) | {"queued"}


@pytest.mark.parametrize("cancelling", [False, True])
@pytest.mark.parametrize("cause", [None, "user", "run_failure"])
@pytest.mark.parametrize("any_failed", [False, True])
def test_how_a_backfill_ends(cancelling, cause, any_failed):
    expected = "failed" if any_failed else "succeeded"
    if cancelling:
        expected = "cancelled" if cause == "user" else "failed"
    assert backfill.end_state(cancelling=cancelling, cancel_cause=cause, any_failed=any_failed) == expected


@pytest.mark.parametrize(
    ("cancel_requested", "lost", "most", "expected"),
    [
        (False, 0, 5, "queued"),
        (False, 4, 5, "queued"),
        (False, 5, 5, "failed"),
        (False, 6, 5, "failed"),
        (False, 1, 1, "failed"),
        (True, 0, 5, "cancelled"),
        (True, 5, 5, "cancelled"),
        (True, 9, 5, "cancelled"),
    ],
)
def test_what_becomes_of_a_run_whose_driver_was_lost(cancel_requested, lost, most, expected):
    after = run.after_loss(cancel_requested=cancel_requested, lost_attempts=lost, max_lost_attempts=most)
    assert after == expected
    assert run.MACHINE.allows("starting", after)
    assert run.MACHINE.allows("running", after)
