"""Commands that change a backfill, and the values they set."""

import pytest

from backfill_planner.commands import decide
from backfill_planner.decide import Refuse
from retrofill_core.contract.backfills import BackfillChangeRequested
from retrofill_core.domain.backfill import BackfillState, OnRunFailure

CHANGE = BackfillChangeRequested(max_active_runs=3)


@pytest.mark.parametrize("state", ["running", "paused"])
def test_only_what_is_given_changes(state):
    assert decide(CHANGE, state) == {"max_active_runs": 3}
    others = BackfillChangeRequested(batch_size=1, on_run_failure=OnRunFailure.CONTINUE)
    assert decide(others, state) == {"batch_size": 1, "on_run_failure": "continue"}


@pytest.mark.parametrize("state", sorted(set(BackfillState) - {"running", "paused"}))
def test_a_backfill_that_starts_nothing_any_more_is_not_changed(state):
    assert decide(CHANGE, state) == Refuse(f"the backfill is {state.replace('_', ' ')}: there is nothing to change")


def test_an_empty_command_is_refused():
    assert decide(BackfillChangeRequested(), "running") == Refuse(
        "it changes nothing: give max_active_runs, batch_size or on_run_failure"
    )
