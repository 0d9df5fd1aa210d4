"""A dry run refuses what the planner would refuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.both_stores import put
from tests.support.sessions import MemoryStore

from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.domain.planning import Plan, Rejection
from retrofill_core.store import pipelines
from retrofill_tools.client.previews import preview

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
