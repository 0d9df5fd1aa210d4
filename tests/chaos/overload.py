"""Overload scenarios: thousands of requests at once, and one giant backfill beside small ones."""

from __future__ import annotations

from datetime import date, timedelta

from retrofill_core.contract.backfills import BackfillCancelRequested
from retrofill_core.contract.topics import Topic, partition_of
from tests.chaos import work
from tests.chaos.history import Wish
from tests.chaos.memory import Memory
from tests.chaos.stage import Stage
from tests.chaos.workload import id_in, request_of
from tests.support.definitions import daily
from tests.support.installation import PARTITIONS, until

FAR = date(2010, 1, 1)
MOST_MB = 600.0
SECONDS = 1200.0
# Every driver that there is, so that small backfills wait for a seat.
GIANT_LIMIT = 16
ANSWERED = "SELECT count(*) FROM backfill_request WHERE id = ANY(%s)"
ENDED = "SELECT count(*) FROM backfill WHERE id = ANY(%s) AND ended_at IS NOT NULL"
# Runs of the giant that started before the last small backfill ended.
AHEAD = """
SELECT count(*) FROM run WHERE backfill_id = %s
AND started_at < (SELECT max(ended_at) FROM backfill WHERE id = ANY(%s))
"""


def requests_at_once(stage: Stage, count: int = 10_000) -> None:
    """Publish ``count`` requests at once for few distinct days, so that most are refused."""
    wishes = []
    for n in range(count):
        day = FAR + timedelta(days=n % max(1, count // 20))
        wishes.append(Wish(f"many-{n}", f"p{n % 3}", day, day, seconds=0))
    with Memory(stage.crew) as memory:
        _ask(stage, wishes)
        stage.faults["requests at once"] += count
        ids = [wish.id for wish in wishes]
        until(lambda: stage.made.value(ANSWERED, ids) == count, "all are answered", seconds=SECONDS)
        until(
            lambda: not stage.made.query("SELECT 1 FROM backfill WHERE id = ANY(%s) AND ended_at IS NULL LIMIT 1", ids),
            "all that were planned end",
            seconds=SECONDS,
        )
    _tell(stage, memory)
    stage.recovered("too many requests for a service")


def giant(stage: Stage, days: int = 70, small: int = 100) -> None:
    """Run a backfill of ``days`` days of minutes beside small ones, then cancel it.

    The small ones must not wait for it, neither in its shard, where half of them are, nor in another.
    """
    stage.made.apply(
        daily(
            "giant",
            schedule="* * * * *",
            max_active_runs=GIANT_LIMIT,
            code={"file": work.__file__, "attribute": "work"},
        )
    )
    stage.limits["giant"] = GIANT_LIMIT
    last = FAR + timedelta(days=days - 1)
    wish = Wish("giant", "giant", FAR, last, limit=GIANT_LIMIT, seconds=0, step=timedelta(minutes=1))
    shard = partition_of(wish.id, PARTITIONS)
    with Memory(stage.crew) as memory:
        _ask(stage, [wish])
        stage.made.wait_state("giant", "running")
        few = [
            Wish(id_in((shard + n % 2) % PARTITIONS, "small"), f"p{n % 3}", day, day + timedelta(days=1), seconds=0)
            for n, day in ((n, FAR + timedelta(days=2 * n)) for n in range(small))
        ]
        _ask(stage, few)
        stage.faults["runs of one backfill"] += len(wish.days)
        ids = [each.id for each in few]
        until(lambda: stage.made.value(ENDED, ids) == small, "the small ones end", seconds=SECONDS)
        ahead = stage.made.value(AHEAD, wish.id, ids)
        stage.facts[f"runs of the giant that began before {2 * small} runs of small ones had ended"] = ahead
        # The giant gets its fair share of drivers, and no more because of its size.
        assert ahead < 10 * 2 * small + 100, ahead
        stage.script.cancelled.add(wish.id)
        stage.player.send(Topic.BACKFILL_REQUESTS, wish.id, BackfillCancelRequested(), 1)
        until(lambda: stage.made.value(ENDED, [wish.id]) == 1, "the giant is cancelled", seconds=SECONDS)
    _tell(stage, memory)
    stage.recovered("a giant for a service")


def _ask(stage: Stage, wishes: list[Wish]) -> None:
    stage.extra |= {wish.id: wish for wish in wishes}
    stage.player.send_all(Topic.BACKFILL_REQUESTS, [(wish.id, request_of(wish, stage.folder)) for wish in wishes])


def _tell(stage: Stage, memory: Memory) -> None:
    """Report memory in the table and check it against a generous bound."""
    for name, used in memory.samples.items():
        stage.facts[f"memory of {name} at first, at most, at last (MB)"] = (
            f"{used[0]:.0f}, {max(used):.0f}, {used[-1]:.0f}"
        )
        assert max(used) < MOST_MB, (name, max(used))
