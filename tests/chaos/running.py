"""Runs one scenario by name and seed and returns its result."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any

from tests.chaos.history import History
from tests.chaos.limits_sampler import LimitsSampler
from tests.chaos.oracle import Violation, check
from tests.chaos.report import Result
from tests.chaos.scenarios import Scenario
from tests.chaos.stage import Stage, finish, staged
from tests.support.installation import Installation


def run(name: str, scenario: Scenario, made: Installation, seed: int, **more: Any) -> Result:
    """Play ``scenario`` on its own installation and check every promise."""
    began = time.monotonic()
    with LimitsSampler(made) as sampler, staged(made, seed, **more) as stage:
        history, broken = _play(scenario, stage, sampler)
    if not stage.faults:
        broken.append(Violation("the_scenario_itself", "no fault was played: nothing was tried"))
    return Result(
        name=name,
        seed=seed,
        seconds=time.monotonic() - began,
        faults=stage.faults,
        events=sum(map(len, history.events.values())),
        runs=len(history.rows("run")),
        violations=broken + check(history),
        recoveries=stage.recoveries,
        facts=stage.facts | {"samples of the limits": sampler.samples},
    )


def _play(scenario: Scenario, stage: Stage, sampler: LimitsSampler) -> tuple[History, list[Violation]]:
    """Play the scenario. Its own failure counts as a violation; the promises are checked anyway."""
    try:
        scenario(stage)
    except Exception as e:  # noqa: BLE001 - any error means that the scenario was not played to its end
        place = traceback.extract_tb(e.__traceback__)[-1]
        what = f"{type(e).__name__}: {e} ({Path(place.filename).name}:{place.lineno})"
        return finish(stage, sampler), [Violation("the_scenario_itself", what)]
    return finish(stage, sampler), []
