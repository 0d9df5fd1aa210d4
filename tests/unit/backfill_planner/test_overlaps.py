"""The refusal of an overlap names what helps in the state of the other backfill, and a range in the pipeline's zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from backfill_planner.decide import Refuse, answer_command
from retrofill_core.contract.base import REGISTRY
from retrofill_core.domain.backfill import ACTIVE, BackfillState
from retrofill_core.domain.planning import Active, overlap

START, END = datetime(2024, 1, 1, 5, tzinfo=UTC), datetime(2024, 2, 1, 5, tzinfo=UTC)


@pytest.mark.parametrize("state", ACTIVE)
def test_what_an_overlap_proposes_is_accepted_in_that_state(state: BackfillState) -> None:
    message = overlap("flights", "America/New_York", Active("ü 1", state, START, END)).message
    assert message.startswith(
        f"backfill ü 1 of flights is {state.replace('_', ' ')} and covers 2024-01-01 – 2024-01-31 (America/New_York): "
    )
    verbs = {verb for verb in ("resume", "cancel", "publish", "discard") if re.search(rf"\b{verb}\b", message)}
    assert bool(verbs) or "wait until" in message
    for verb in verbs:
        command = REGISTRY[f"Backfill{verb.capitalize()}Requested"]()
        approved = 0 if state == BackfillState.IN_REVIEW else None
        assert not isinstance(answer_command(command, state, approved=approved), Refuse)  # type: ignore[arg-type]


def test_only_a_running_one_ends_by_itself() -> None:
    waits = {state for state in ACTIVE if "wait" in overlap("p", "UTC", Active("b", state, START, END)).message}
    assert waits == {BackfillState.RUNNING, BackfillState.CANCELLING}
