"""Several run-starters as hosts of each other's attempts, on a real Kafka and Postgres."""

from __future__ import annotations

import json

import pytest
from tests.support.definitions import daily
from tests.support.installation import PARTITIONS, Installation, until
from tests.support.light import apply_trivial
from tests.support.replica import Replica
from tests.support.stacks import stack
from tests.support.terminal import Cli, cli, point_at

from retrofill_core.contract.topics import partition_of

__all__ = ["cli", "stack"]
# A backfill's attempts, and where.
HOSTS = "SELECT host, count(*) AS n FROM attempt WHERE {} GROUP BY host"
LIVE = HOSTS.format("slot IS NOT NULL AND began_at IS NOT NULL")


def starters(stack: Installation, count: int, **environment: str) -> list[Replica]:
    """So many run-starters with two seats each, which all are warm, and which all own shards."""
    made = [stack.start("instant-starter", environment, RETROFILL_DRIVER_SLOTS="2") for _ in range(count)]
    until(lambda: stack.value("SELECT count(*) FROM seat WHERE warm") == 2 * count, "their seats are warm")
    owners = "SELECT count(DISTINCT owner) FROM run_starter_shard"
    until(lambda: stack.value(owners) == count, "they share the shards")
    return made


def name_of(replica: Replica, stack: Installation) -> str:
    """Under which name it is a host."""
    names = [row["name"] for row in stack.query("SELECT name FROM host")]
    return str(next(name for name in names if name.endswith(f"-{replica.process.pid}")))


def id_of(replica: Replica, stack: Installation) -> str:
    """A backfill id in one of its shards."""
    query = "SELECT partition FROM run_starter_shard WHERE owner = %s"
    owned = {row["partition"] for row in stack.query(query, name_of(replica, stack))}
    return next(id for n in range(1000) if partition_of(id := f"b-{n}", PARTITIONS) in owned)


@pytest.mark.long
def test_one_backfill_uses_the_drivers_of_all_replicas(stack: Installation) -> None:
    stack.apply(daily(max_active_runs=6))
    starters(stack, 3, INSTANT_SECONDS="3600")
    stack.request("p", "2020-01-01", "2020-01-31")
    until(lambda: [row["n"] for row in stack.query(LIVE)] == [2, 2, 2], "all six drivers work")
    assert stack.value("SELECT count(*) FROM seat WHERE attempt_id IS NOT NULL AND acknowledged_at IS NOT NULL") == 6


@pytest.mark.long
def test_a_replica_whose_drivers_cannot_start_gets_nothing_and_says_why(
    stack: Installation, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = stack.start("run-starter", RETROFILL_DRIVER_SLOTS="2", RETROFILL_SPARK_REMOTE="sc://127.0.0.1:1")
    note = "SELECT count(*) FROM host WHERE note LIKE 'Spark at sc://127.0.0.1:1 does not answer: %%'"
    until(lambda: stack.value(note) == 1, "it knows why its drivers do not start")
    apply_trivial(stack, "p", limit=4)
    id = stack.request("p", "2020-01-01", "2020-01-12", id=id_of(broken, stack))
    until(lambda: stack.runs_by_state(id) == {"queued": 12}, "it is planned")
    point_at(stack, monkeypatch)
    assert "no driver is ready: run-starter-" in cli("backfill", "show", id).out
    stack.start("light-starter", RETROFILL_DRIVER_SLOTS="2")
    assert stack.wait_state(id, "succeeded", "failed") == "succeeded"
    assert stack.runs_by_state(id) == {"succeeded": 12}
    assert stack.query("SELECT DISTINCT attempt, lost_attempts FROM run") == [{"attempt": 1, "lost_attempts": 0}]
    assert [row["n"] for row in stack.query(HOSTS.format("true"))] == [12]
    hosts = {each["name"]: each for each in json.loads(cli("hosts", "--json").out)}
    mine = hosts[name_of(broken, stack)]
    assert (mine["warm"], mine["busy"], mine["cold"]) == (0, 0, 2)
    assert "does not answer" in mine["note"]
    assert broken.process.poll() is None
