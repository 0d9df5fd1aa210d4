"""Half of the hosts vanish again and again with their drivers, as spot instances do, and come back."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from datetime import date, timedelta

import psutil

from retrofill_core.contract.topics import Topic
from tests.chaos import work
from tests.chaos.history import Wish, lines_of
from tests.chaos.stage import Stage
from tests.chaos.workload import request_of
from tests.support.definitions import daily
from tests.support.installation import until
from tests.support.replica import Replica

STARTER, POOL = "run-starter", "spot"
FIRST = date(2010, 1, 1)
SLOTS, BATCH, DAYS = 2, 10, 120
# A run without a disturbance, in seconds.
RUN_SECONDS = 1.0
# The share of the intervals that may be executed more than once.
MOST_REPEATED = 0.1
QUEUED = "SELECT count(*) FROM run JOIN backfill b ON b.id = backfill_id WHERE b.pipeline = %s AND run.state = 'queued'"
LEFT = "SELECT count(*) FROM backfill WHERE pipeline = %s AND ended_at IS NULL"
ASKED = "SELECT count(*) FROM backfill_request WHERE id LIKE %s"
LOST = "SELECT count(*) FROM attempt JOIN backfill b ON b.id = backfill_id WHERE b.pipeline = %s AND outcome = 'lost'"
# Hosts under one name, one after the other.
INCARNATIONS = "SELECT min(n) FROM (SELECT count(*) AS n FROM host WHERE pool = %s GROUP BY name) AS named"


class Spot:
    """Hosts under fixed names. Half of them serve all pools, the others only one."""

    def __init__(self, stage: Stage, count: int) -> None:
        self._stage = stage
        self._serves = {f"node-{n}": "" if n % 2 else POOL for n in range(count)}
        self._hosts: dict[str, Replica] = {}

    def come_back(self) -> None:
        """Start those that are away, under their names."""
        for name in self._serves.keys() - self._hosts.keys():
            self._hosts[name] = self._stage.crew.launch(
                STARTER, CHAOS_HOST=name, RETROFILL_SERVES=self._serves[name], RETROFILL_POOLS=_pools()
            )

    def vanish(self) -> None:
        """End half of them, at once and with all their processes."""
        for name in self._stage.chance.sample(sorted(self._hosts), len(self._serves) // 2):
            host = self._hosts.pop(name)
            # So that it does not report what became of its drivers.
            host.freeze()
            for process in psutil.Process(host.process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            host.kill()
            self._stage.fault("host vanished")

    def stop(self) -> None:
        """Stop them in an orderly way."""
        for host in self._hosts.values():
            host.tell_to_stop()
        for host in self._hosts.values():
            host.stop()


def preempted(stage: Stage, hosts: int = 4, times: int = 10, every: float = 30.0, away: float = 10.0) -> None:
    """Half of the hosts vanish ``times`` times, and are ``away`` for so many seconds.

    All runs succeed, as no loss counts, and few are executed twice: of a batch, only the run under way.
    """
    limit = hosts * SLOTS
    stage.made.apply(
        daily(
            POOL,
            pool=POOL,
            max_active_runs=limit,
            batch_size=BATCH,
            code={"file": work.__file__, "attribute": "work"},
        )
    )
    stage.limits[POOL], stage.batches[POOL] = limit, BATCH
    stage.crew.scale(STARTER, 0)
    # As users have it: a run that its driver is lost with again and again fails.
    stage.crew.equip(STARTER, RETROFILL_DRIVER_SLOTS=str(SLOTS), RETROFILL_MAX_LOST_ATTEMPTS="5")
    spot = Spot(stage, hosts)
    spot.come_back()
    for _ in range(times):
        _work_for(stage, every - away)
        spot.vanish()
        _work_for(stage, away)
        spot.come_back()
    until(lambda: stage.made.value(LEFT, POOL) == 0, "its backfills end", seconds=300)
    stage.recovered("a host vanished")
    _tell(stage, times)
    spot.stop()
    stage.crew.scale(STARTER, 1)


def _pools() -> str:
    return json.dumps({POOL: {"driver_slots": SLOTS}})


def _work_for(stage: Stage, seconds: float) -> None:
    """Keep all drivers of the pool busy with batches for so long."""
    for _ in range(round(seconds)):
        asked = stage.made.value(ASKED, f"{POOL}-%")
        if asked == len(_wishes(stage)) and stage.made.value(QUEUED, POOL) < DAYS:
            first = FIRST + timedelta(days=DAYS * asked)
            last = first + timedelta(days=DAYS - 1)
            wish = Wish(f"{POOL}-{asked}", POOL, first, last, limit=stage.limits[POOL], seconds=RUN_SECONDS)
            stage.extra[wish.id] = wish
            stage.player.send(Topic.BACKFILL_REQUESTS, wish.id, request_of(wish, stage.folder), 1)
        stage.wait(1.0)


def _wishes(stage: Stage) -> list[Wish]:
    return [wish for wish in stage.extra.values() if wish.pipeline == POOL]


def _tell(stage: Stage, times: int) -> None:
    """Check and report how much was executed more than once, by the drivers' own log."""
    executions: dict[str, set[tuple[int, int]]] = {}
    for line in lines_of(stage.folder / "work.log"):
        if line["pipeline"] == POOL:
            for day in line["days"]:
                executions.setdefault(day, set()).add((line["run"], line["attempt"]))
    often = Counter(len(each) for each in executions.values())
    share = sum(count for times, count in often.items() if times > 1) / len(executions)
    lost = stage.made.value(LOST, POOL)
    stage.facts[f"of {len(executions)} intervals executed more than once, in %"] = round(100 * share, 1)
    stage.facts["attempts lost with their hosts"] = lost
    assert executions.keys() == {day for wish in _wishes(stage) for day in wish.days}
    assert lost >= times, f"only {lost} attempts were lost: the hosts had no work"
    assert stage.made.value(INCARNATIONS, POOL) > 1, "no host came back under its name"
    assert share < MOST_REPEATED, f"{share:.1%} of the intervals were executed more than once: {dict(often)}"
