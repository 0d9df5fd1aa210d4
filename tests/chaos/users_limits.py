"""Days that hang and budgets that are used up, while drivers and services are killed."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from retrofill_core.contract.backfills import BackfillResumeRequested
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.backfill import Budget
from tests.chaos import faults, work
from tests.chaos.history import Wish
from tests.chaos.stage import Stage
from tests.chaos.workload import request_of
from tests.support.definitions import daily
from tests.support.installation import until

FIRST = date(2010, 1, 1)
# Longer than it takes to notice a dead host and to take its shards over: nothing but what hangs may time out.
TIMEOUT_SECONDS = 30.0
STATE = "SELECT state FROM backfill WHERE id = %s"
PAUSES = "SELECT count(*) FROM chaos.change WHERE entity = 'backfill' AND id = %s AND \"to\" = 'paused'"
REFUSED = "SELECT count(*) FROM backfill_command WHERE backfill_id = %s AND answer_type = 'BackfillCommandRejected'"
LEFT = "SELECT count(*) FROM backfill WHERE id IN ('hangs', 'spends') AND ended_at IS NULL"


def users_limits(stage: Stage, kills: int = 4) -> None:
    """Two of sixteen days hang; six of twelve fail, of which first two and then four are allowed."""
    days = [FIRST + timedelta(days=n) for n in range(16)]
    hanging = frozenset(day.isoformat() for day in stage.chance.sample(days, 2))
    failing = frozenset(day.isoformat() for day in days[:6])
    _apply(stage, "hangs", limit=4, batch=4, run_timeout_seconds=TIMEOUT_SECONDS)
    # One at a time: of those under way when it pauses, the second budget must not be used up already.
    _apply(stage, "spends", limit=1, batch=1)
    _ask(stage, Wish("hangs", "hangs", days[0], days[15], limit=4, hanging=hanging))
    spends = Wish("spends", "spends", days[0], days[11], limit=1, failing=failing, budgets=(2, 4))
    _ask(stage, spends)
    done = 0
    while done < kills:
        stage.wait(stage.chance.uniform(0.5, 3.0))
        done += faults.kill_drivers(stage, 1)
    for name in ("run-starter", "backfill-planner"):
        faults.a_replica(stage, name).kill()
        stage.fault(f"kill -9 of {name}")
    for n, budget in enumerate([Budget(failed_runs=most) for most in spends.budgets[1:]] + [Budget()], start=1):
        _resume_once_paused(stage, spends.id, n, budget)
    until(lambda: stage.made.value(LEFT) == 0, "both end", seconds=300)
    stage.recovered("drivers and services killed")


def _resume_once_paused(stage: Stage, id: str, times: int, budget: Budget) -> None:
    until(lambda: stage.made.value(PAUSES, id) == times, f"it pauses, {times}", seconds=120)
    # The player resumes all that is paused, without another budget.
    refused = stage.made.value(REFUSED, id)
    until(lambda: stage.made.value(REFUSED, id) > refused, "no budget is left", seconds=60)
    assert stage.made.value(STATE, id) == "paused"
    stage.player.send(Topic.BACKFILL_REQUESTS, id, BackfillResumeRequested(budget=budget), 1)


def _apply(stage: Stage, name: str, limit: int, batch: int, **more: Any) -> None:
    code = {"file": work.__file__, "attribute": "work"}
    stage.made.apply(daily(name, max_active_runs=limit, batch_size=batch, code=code, **more))
    stage.limits[name], stage.batches[name] = limit, batch


def _ask(stage: Stage, wish: Wish) -> None:
    stage.extra[wish.id] = wish
    stage.player.send(Topic.BACKFILL_REQUESTS, wish.id, request_of(wish, stage.folder), 1)
