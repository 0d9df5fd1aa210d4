"""Tasks that exit, break their streams, fork, patch the library, print a gigabyte: each run ends as its manner implies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

from retrofill_core.contract.topics import Topic
from tests.chaos import work
from tests.chaos.history import Wish
from tests.chaos.stage import Stage
from tests.chaos.workload import request_of
from tests.support.definitions import daily
from tests.support.installation import until
from tests.support.manners import ENDS_OF_ALL, LARGE, QUITS

FIRST = date(2010, 1, 1)
STARTER = "run-starter"
LIMIT, BATCH, RANGE = 3, 6, 8
LEFT = "SELECT count(*) FROM backfill WHERE id IN ('rude', 'rude-ranges') AND ended_at IS NULL"


def bad_manners(stage: Stage, of_ranges: int = 8, large: Sequence[str] = LARGE) -> None:
    """Every manner in batches, and some in ranges. Between two of them is a day that does nothing wrong."""
    # No driver is lost here, however busy the machine is.
    stage.crew.equip(STARTER, RETROFILL_LEASE_SECONDS="60")
    stage.crew.replace(STARTER)
    every = [*ENDS_OF_ALL, *large]
    # One that succeeds before the others have had their turn would hide them in a range.
    some = stage.chance.sample(sorted(ENDS_OF_ALL.keys() - QUITS), of_ranges)
    _ask(stage, "rude", stage.chance.sample(every, len(every)), batch=BATCH)
    _ask(stage, "rude-ranges", some, batch=RANGE, batch_mode="range")
    until(lambda: stage.made.value(LEFT) == 0, "both end", seconds=600)
    stage.recovered("bad manners")


def _ask(stage: Stage, name: str, manners: Sequence[str], batch: int, **more: Any) -> None:
    code = {"file": work.__file__, "attribute": "work"}
    stage.made.apply(daily(name, max_active_runs=LIMIT, batch_size=batch, code=code, **more))
    stage.limits[name], stage.batches[name] = LIMIT, batch
    days = {(FIRST + timedelta(days=2 * n)).isoformat(): what for n, what in enumerate(manners)}
    last = FIRST + timedelta(days=2 * len(manners) - 1)
    wish = Wish(name, name, FIRST, last, limit=LIMIT, seconds=0.01, manners=days)
    stage.extra[wish.id] = wish
    stage.player.send(Topic.BACKFILL_REQUESTS, wish.id, request_of(wish, stage.folder), 1)
    for _ in manners:
        stage.fault("a task with bad manners")
