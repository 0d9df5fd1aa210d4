"""A run whose rows must not be published, as another pipeline's are there."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.unit.run_starter.reported import ERROR, attempt, ended, fold, run, staged, steps

from retrofill.protocol.table_output import TableOutput
from retrofill.states import AttemptMode
from retrofill_core.domain.run import RunState
from retrofill_core.store.places import Published, Use
from run_starter.reports.steps import Accept, Begin, End
from run_starter.reports.table_places import refusal, tables

TABLE = TableOutput("lake.db.t", "lake.db.s", "day", "date", "delta", identity="delta 1")


@pytest.mark.parametrize("mode", [AttemptMode.EACH, AttemptMode.RANGE])
def test_it_fails_when_its_output_would_be_accepted_and_the_others_go_on(mode: AttemptMode) -> None:
    runs = [run(), run(id=8)]
    reports = [staged(), staged(8), ended("succeeded"), ended("succeeded", 8)]
    made = fold(reports, runs, [attempt(mode=mode, runs=2)], refused={7: ERROR})
    assert steps(made) == [End(RunState.FAILED, ERROR)]
    assert [type(step) for step in made.runs[8]] == [Accept, End]
    assert [why for _, why in made.ignored] == ["the run is failed"]
    assert made.alive, "its attempt goes on"


def test_it_fails_too_if_its_beginning_is_reported_with_it() -> None:
    made = fold([staged()], [run(RunState.STARTING)], refused={7: ERROR})
    assert [type(step) for step in steps(made)] == [Begin, End]


def test_what_was_accepted_before_stays() -> None:
    assert steps(fold([staged()], [run(RunState.PUBLISHING)], refused={7: ERROR})) == []


def test_only_tables_that_are_known_belong_to_somebody() -> None:
    older = str(TABLE).replace("&identity=delta+1", "")
    assert tables(["/data/day=1", str(TABLE), older]) == [TABLE]


@pytest.mark.parametrize("same", [True, False])
def test_it_says_what_to_do_in_one_line(same: bool) -> None:
    day = datetime(2024, 1, 1, tzinfo=UTC)
    message = refusal(TABLE, Use("delta 1", 2, "dt", "q"), Published(7, day, day, ()), same=same)
    assert "run 7 of pipeline 'q' has published" in message
    assert "undo what it has published, or remove pipeline 'q'" in message
    assert "\n" not in message
