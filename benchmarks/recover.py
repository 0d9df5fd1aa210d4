"""The time in which a backfill makes no progress after the process that owns it is killed."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.definitions import daily
from tests.support.installation import PARTITIONS, Installation, until

from benchmarks.core import Benchmark, Figure, figure
from benchmarks.support.servers import IDLE_STARTER, installed, servers
from retrofill_core.contract.topics import PLANNER, partition_of
from retrofill_core.settings import Settings

REPEATS = 3


def gap(made: Installation, repeat: int) -> float:
    """Seconds without a run start after the run-starter that owns the backfill is killed."""
    first, second = (made.start(IDLE_STARTER, RETROFILL_DRIVER_SLOTS="2") for _ in range(2))
    owned = "SELECT count(DISTINCT owner) FROM run_starter_shard WHERE owner LIKE ANY(%s)"
    until(lambda: made.value(owned, [f"%-{r.process.pid}" for r in (first, second)]) == 2, "both own shards")
    shard = made.value("SELECT partition FROM run_starter_shard WHERE owner LIKE %s LIMIT 1", f"%-{first.process.pid}")
    name = f"p{repeat}"
    made.apply(daily(name, schedule="@hourly", max_active_runs=16))
    id = f"{name}-{key_on_shard(shard, name)}"
    made.request(name, "2000-01-01", "2005-01-01", id=id, max_active_runs=16)
    until(lambda: made.runs_by_state(id).get("succeeded", 0) > 20, "it runs")
    first.kill()
    # Its last statement may still be under way.
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name ~ %s"
    until(lambda: made.value(sessions, f"-{first.process.pid}(-|$)") == 0, "its sessions are gone")
    killed = made.value("SELECT clock_timestamp()")
    # Only the shard's owner writes ``started_at``, and the first owner is dead.
    again = "SELECT min(started_at) FROM run WHERE backfill_id = %s AND started_at > %s"
    until(lambda: made.value(again, id, killed) is not None, "it goes on")
    seconds = (made.value(again, id, killed) - killed).total_seconds()
    second.stop()
    made.replicas[-2:] = []
    return float(seconds)


def key_on_shard(shard: int, name: str) -> str:
    """An id with this prefix that maps to the shard."""

    return next(str(n) for n in range(1000) if partition_of(f"{name}-{n}", PARTITIONS) == shard)


def run() -> Sequence[Figure]:
    """Kill the owner several times."""
    gaps = []
    for repeat in range(REPEATS):
        with servers() as on, installed(on) as made:
            made.start(PLANNER.name)
            gaps.append(gap(made, repeat))
    session = Settings().consumer_session_seconds
    return [
        figure("owner killed until the next run starts", "s", gaps, at_most=10),
        figure("beyond the session time-out that is set", "s", [seconds - session for seconds in gaps]),
    ]


BENCHMARK = Benchmark(
    "recover",
    "the run-starter that owns a backfill is killed with kill -9, until another starts the next of its runs",
    "the time after which Kafka declares a member dead (consumer_session_seconds)",
    "at most 10 s",
    run,
)
