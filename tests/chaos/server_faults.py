"""Scenarios with server faults: killed, cut off, stalled, slow, commits broken, rows locked."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.commit_line import CommitLine, When
from tests.chaos.crew import NAMES
from tests.chaos.servers import (
    KAFKA,
    POSTGRES,
    OwnServers,
    postgres_address,
    through_kafka_line,
    through_postgres_line,
)
from tests.chaos.stage import PROBE, Stage
from tests.support.installation import until
from tests.support.proxy import Proxy

CUT_SECONDS = 12.0
SLOW_SECONDS = 0.5


def own(stage: Stage) -> OwnServers:
    """The scenario's own servers."""
    assert isinstance(stage.servers, OwnServers), "this scenario kills servers: it needs its own"
    return stage.servers


def kafka_killed(stage: Stage, count: int = 2) -> None:
    """``kill -9`` of the broker; supervisord restarts it."""
    for _ in range(count):
        stage.wait(stage.chance.uniform(0.5, 3.0))
        own(stage).kill(KAFKA)
        stage.fault("kill -9 of Kafka")
        own(stage).wait_answers(KAFKA)
        stage.recovered("Kafka killed")


def postgres_killed(stage: Stage, count: int = 3) -> None:
    """End Postgres without a checkpoint: by immediate shutdown or ``kill -9``."""
    for _ in range(count):
        stage.wait(stage.chance.uniform(0.5, 3.0))
        number = stage.chance.choice([signal.SIGQUIT, signal.SIGKILL])
        own(stage).kill(POSTGRES, number)
        stage.fault("kill -9 of Postgres" if number == signal.SIGKILL else "immediate shutdown of Postgres")
        own(stage).wait_answers(POSTGRES)
        stage.recovered("Postgres killed")


def _break_commits(line: CommitLine, when: When, every: int, hits: int, name: str) -> None:
    goal = line.hits + hits
    line.break_commits(when, every=every)
    until(lambda: line.hits >= goal, f"commits of {name} break", seconds=120)
    line.mend()


def commits_broken(stage: Stage, names: tuple[str, ...] = NAMES, hits: int = 6) -> None:
    """Reset each service's connections during COMMIT: some commits take effect, some do not."""
    for name in names:
        with CommitLine(postgres_address(stage.made)) as line:
            stage.crew.equip(name, **through_postgres_line(stage.made, name, line))
            stage.crew.replace(name)
            for when in When:
                _break_commits(line, when, stage.chance.randint(2, 4), hits, name)
                stage.faults[f"COMMIT reset {when.value}"] += hits
            stage.recovered(f"commits of {name} broken")
            back(stage, name)


def postgres_line(stage: Stage, names: tuple[str, ...] = NAMES) -> None:
    """Cut Postgres off from one service at a time, then stall it, then slow it down."""
    for name in names:
        with Proxy(postgres_address(stage.made)) as line:
            stage.crew.equip(name, **through_postgres_line(stage.made, name, line))
            stage.crew.replace(name)
            _ill_treat(stage, line, f"Postgres for {name}")
            back(stage, name)


def kafka_line(stage: Stage, names: tuple[str, ...] = NAMES) -> None:
    """Cut Kafka off from one service at a time, then stall it, then slow it down."""
    with own(stage).kafka_line() as line:
        for name in names:
            stage.crew.equip(name, **through_kafka_line(line))
            stage.crew.replace(name)
            _ill_treat(stage, line, f"Kafka for {name}")
            back(stage, name)


def _ill_treat(stage: Stage, line: Proxy, what: str) -> None:
    stage.recovered(f"the line of {what}")
    line.cut()
    stage.fault(f"cut off: {what}")
    stage.wait(CUT_SECONDS)
    line.mend()
    stage.recovered(f"{what} cut off")
    line.stall()
    stage.fault(f"stalled: {what}")
    stage.wait(CUT_SECONDS)
    line.mend()
    stage.recovered(f"{what} stalled")
    line.delay = SLOW_SECONDS
    stage.fault(f"slow: {what}")
    stage.wait(CUT_SECONDS)
    line.mend()
    stage.recovered(f"{what} slow")


def back(stage: Stage, name: str) -> None:
    """Restart the service without the proxy's environment."""
    stage.crew.equip(name)
    stage.crew.replace(name)


def open_transaction(stage: Stage, seconds: float = 120.0) -> None:
    """Another transaction locks a backfill, its runs and a pipeline for minutes.

    Other shards must keep working.
    """
    with held(stage) as shard:
        stage.fault("a write transaction left open")
        others = [each for each in range(stage.made.settings.partitions) if each != shard]
        stage.recovered("beside a transaction left open", others)
        stage.wait(seconds)
        stage.recovered("beside a transaction left open", others)
    stage.recovered("a transaction left open in Postgres")


@contextmanager
def held(stage: Stage) -> Iterator[int]:
    """Hold the locks; yields the backfill's shard."""
    active = "SELECT id, shard FROM backfill WHERE ended_at IS NULL AND pipeline <> %s ORDER BY id LIMIT 1 FOR UPDATE"
    found: list[tuple[str, int]] = []
    with stage.made.session() as conn:

        def locked() -> bool:
            found[:] = conn.execute(active, [PROBE]).fetchall()
            return bool(found)

        until(locked, "a backfill is active")
        conn.execute("UPDATE pipeline SET lock_only = 1 WHERE name = 'p0'")
        conn.execute("SELECT 1 FROM run WHERE backfill_id = %s AND finished_at IS NULL FOR UPDATE", [found[0][0]])
        yield found[0][1]
