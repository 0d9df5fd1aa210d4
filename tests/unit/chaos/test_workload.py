"""The workload: one seed is one script, and a script has what the oracle is to be tried on."""

from __future__ import annotations

import itertools

from tests.chaos.workload import Order, Script, Step

from retrofill.messages.backfills import BackfillCancelRequested, BackfillPauseRequested, BackfillResumeRequested


def played(seed: int, steps: int = 200) -> tuple[Script, list[Step]]:
    """The first steps of a script."""
    script = Script(seed)
    return script, list(itertools.islice(script.steps(), steps))


def test_one_seed_is_one_script() -> None:
    assert played(7)[0].wishes == played(7)[0].wishes
    assert played(7)[0].cancelled == played(7)[0].cancelled
    assert played(7)[0].wishes != played(8)[0].wishes


def test_it_has_something_of_everything() -> None:
    script, steps = played(7)
    wishes = list(script.wishes.values())
    assert {wish.on_run_failure for wish in wishes} == {"continue", "pause", "cancel"}
    assert {wish.reprocess for wish in wishes} == {"none", "failed", "completed"}
    assert {bool(wish.failing) for wish in wishes} == {wish.backwards for wish in wishes} == {True, False}
    orders = {type(step.message) for step in steps if isinstance(step, Order)}
    assert orders == {BackfillCancelRequested, BackfillPauseRequested, BackfillResumeRequested}
    pairs = itertools.combinations(wishes, 2)
    assert any(a.pipeline == b.pipeline and not {*a.days}.isdisjoint(b.days) for a, b in pairs), "some overlap"
    assert script.cancelled == {
        step.backfill for step in steps if isinstance(step, Order) and isinstance(step.message, BackfillCancelRequested)
    }
