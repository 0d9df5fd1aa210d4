"""A dry run refuses what the planner would refuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.both_stores import put
from tests.support.definitions import daily
from tests.support.sessions import MemoryStore

from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.planning import Plan, Rejection, find_intervals
from retrofill_core.store import pipelines
from retrofill_tools.client.previews import notes_on, preview

PAST, LATER = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"
SETTINGS: Any = SimpleNamespace(max_plan_runs=100, max_conf_bytes=20)


def previewed(**more: Any) -> Any:
    given = {"pipeline": "p", "from": "2020-01-01", "to": "2020-01-03"}
    request = BackfillRequested.model_validate({**given, **more})
    found: list[Plan | Rejection] = []

    def work(conn: Any) -> None:
        found.append(preview(conn, SETTINGS, pipelines.find(conn, {"p"})["p"], request)[0])

    MemoryStore().play([put(), ("a", work)])
    return found[0]


@pytest.mark.parametrize(
    ("more", "reason", "said"),
    [
        ({"finish_by": PAST}, "finish_by_past", "finish_by 2020-01-01T00:00:00+00:00 is in the past"),
        ({"budget": {"until": PAST}}, "budget_past", "budget.until 2020-01-01T00:00:00+00:00 is in the past"),
        ({"conf": {"pwd": "x"}}, "secret_in_conf", "conf.pwd looks like a secret"),
        ({"conf": {"note": "twenty characters or more"}}, "conf_too_large", "conf has 37 bytes as JSON, more than 20"),
        ({"from": "2020-01-03", "to": "2020-01-01"}, "bad_range", "'from' 2020-01-03 is after 'to' 2020-01-01"),
        ({"to": "2020-12-31"}, "too_many_runs", "the range has more than 100 data intervals"),
    ],
)
def test_what_the_planner_would_refuse_is_foreseen(more: dict[str, Any], reason: str, said: str) -> None:
    rejection = previewed(**more)
    assert (rejection.reason, rejection.message.startswith(said)) == (reason, True)


@pytest.mark.parametrize("more", [{}, {"finish_by": LATER, "budget": {"until": LATER, "failed_runs": 1}}])
def test_one_in_the_future_is_planned(more: dict[str, Any]) -> None:
    assert previewed(**more).runs == 3


def script(*args: str, **more: Any) -> dict[str, Any]:
    return {"name": "load", "kind": "submit", "submit": {"script": "/load.py", "args": args}, **more}


UNSTAGED = "task 'load' stages nothing: readers see what it writes at once"
BY_DAY, ALL_IN_ONE = "{stage:/out/{interval.start:%Y-%m-%d}}", "{stage:/out/{interval.start:%Y}}"


@pytest.mark.parametrize(
    ("task", "days", "more", "seats", "said"),
    [
        (script("/out"), 3, {}, 4, [f"{UNSTAGED}, by up to 4 runs in parallel"]),
        (script("/out"), 3, {"max_active_runs": 2}, 4, [f"{UNSTAGED}, by up to 2 runs in parallel"]),
        (script("/out"), 3, {"max_active_runs": 1}, 4, [f"{UNSTAGED} ("]),
        (script("/out"), 1, {}, 4, [f"{UNSTAGED} ("]),
        (script("/out", writes_nothing=True), 3, {}, 4, []),
        (script(BY_DAY), 3, {}, 4, []),
        (script(BY_DAY), 3, {}, 0, []),
        (script(BY_DAY), 2, {}, 2, []),
        (script(BY_DAY), 3, {}, 2, ["4 attempts may be live at once, but the hosts of pool default have 2 seats"]),
        (script(BY_DAY), 3, {"max_active_runs": 2}, 2, []),
        (script(ALL_IN_ONE), 3, {}, 4, ["task 'load': the intervals 2020-01-01"]),
    ],
)
def test_what_one_should_know_before_it_runs(
    task: dict[str, Any], days: int, more: dict[str, Any], seats: int, said: list[str]
) -> None:
    definition = PipelineDefinition.model_validate({**daily(max_active_runs=4).model_dump(), "tasks": [task]})
    given = {"pipeline": "p", "from": "2020-01-01", "to": f"2020-01-0{days}", **more}
    request = BackfillRequested.model_validate(given)
    found = find_intervals(definition, request.spans, 100)
    assert not isinstance(found, Rejection)
    notes = list(notes_on(definition, request, Plan(found, [None] * days, (), (), ()), seats))
    assert [note.startswith(start) for note, start in zip(notes, said, strict=True)] == [True] * len(said), notes
