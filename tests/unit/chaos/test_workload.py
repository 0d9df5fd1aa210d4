"""The workload: a seed determines the script, and a script covers what the oracle needs."""

from __future__ import annotations

import itertools
from datetime import date

import pytest
from tests.chaos.spoiling import HEADERS, READ, VALUES
from tests.chaos.workload import Order, Script, Step

from retrofill_core.bus.envelope import Record, read_headers
from retrofill_core.bus.worker.batches import Dead, triage
from retrofill_core.contract.backfills import (
    BackfillCancelRequested,
    BackfillPauseRequested,
    BackfillResumeRequested,
    RunCancelRequested,
    RunRetryRequested,
)
from retrofill_core.contract.topics import Topic, partition_of


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
    assert orders == {
        BackfillCancelRequested,
        BackfillPauseRequested,
        BackfillResumeRequested,
        RunCancelRequested,
        RunRetryRequested,
    }
    assert any(wish.pipeline == "nobody" for wish in wishes), "of a pipeline that there is not"
    assert any(wish.first < date(2000, 1, 1) for wish in wishes), "before the pipeline's dates"
    assert any(wish.last >= script.today for wish in wishes), "not over yet"
    pairs = itertools.combinations(wishes, 2)
    assert any(a.pipeline == b.pipeline and not {*a.days}.isdisjoint(b.days) for a, b in pairs), "some overlap"
    assert script.cancelled == {
        step.backfill for step in steps if isinstance(step, Order) and isinstance(step.message, BackfillCancelRequested)
    }


@pytest.mark.parametrize("topic", READ)
def test_nobody_can_read_what_is_spoiled(topic: Topic) -> None:
    for value, headers in itertools.product(VALUES, HEADERS):
        raw = tuple((name, text if isinstance(text, bytes) else None) for name, text in headers)
        known, bad = read_headers(raw)
        record = Record(str(topic), partition_of("k", 4), 0, b"k", value, known, raw, 0, bad)
        assert isinstance(triage(record, 4, "t"), Dead), (topic, value, headers)
