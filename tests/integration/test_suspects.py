"""Runs whose driver was lost: the run-starter as real processes with Spark-free drivers, on a real Kafka
and Postgres. The drivers' pool has the address of a Spark server, which none of them uses.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.definitions import daily, key_on
from tests.support.installation import Installation, until
from tests.support.stacks import stack
from tests.support.terminal import Cli, cli, point_at

from retrofill_core.contract.runs import SPARK_LOST, AttemptEnded, ErrorInfo, Report, RunReported
from retrofill_core.contract.topics import Topic

__all__ = ["cli", "stack"]
REMOTE = "sc://spark.example:15002/;token=secret"
# Live runs, and whether they are suspects.
LIVE = (
    "SELECT run.id, run.backfill_id, run.attempt_id, run.attempt, run.position, lost_at, suspect_server, runs "
    "FROM run JOIN attempt ON attempt.id = run.attempt_id WHERE run.state = 'running' ORDER BY lost_at, run.position"
)


def starter(stack: Installation, **more: str) -> None:
    settings = {"INSTANT_SECONDS": "3600", "RETROFILL_DRIVER_SLOTS": "8", "RETROFILL_SPARK_REMOTE": REMOTE}
    stack.start("instant-starter", {**settings, **more})


def running(stack: Installation, number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def as_many() -> bool:
        found[:] = stack.query(LIVE)
        return len(found) == number

    until(as_many, f"{number} runs are running")
    return found


def report(stack: Installation, run: dict[str, Any], *reports: Report) -> None:
    for each in reports:
        stack.publish(Topic.RUN_REPORTS, run["backfill_id"], each)


def about(run: dict[str, Any]) -> dict[str, Any]:
    return {"backfill_id": run["backfill_id"], "attempt_id": run["attempt_id"]}


def lose(stack: Installation, runs: list[dict[str, Any]], *, shared: bool = False) -> None:
    """Report that the drivers of these runs are lost, with their Spark server or each alone, as their hosts would."""
    error = ErrorInfo(type=SPARK_LOST if shared else "DriverLost", message="Spark lost the session")
    for run in runs:
        ended = AttemptEnded(**about(run), state="lost", begun=run["id"], error=error, shared=shared)
        report(stack, run, ended)


def succeed(stack: Installation, run: dict[str, Any]) -> None:
    done = RunReported(**about(run), run_id=run["id"], attempt=run["attempt"], state="succeeded")
    report(stack, run, done, AttemptEnded(**about(run), state="done"))


@pytest.mark.long
def test_suspects_are_retried_alone_and_one_at_a_time_on_their_server(
    stack: Installation, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two backfills of two shards, whose claims may be those of two replicas."""
    for _ in range(2):
        starter(stack)
    for n, name in enumerate(("p", "q")):
        stack.apply(daily(name, max_active_runs=2, batch_size=2))
        stack.request(name, "2020-01-01", "2020-01-08", id=key_on(n))
    lost = running(stack, 4)
    assert {(run["runs"], run["suspect_server"]) for run in lost} == {(2, None)}
    lose(stack, lost)
    # Of each backfill, the next runs go on beside the suspect, or instead of it.
    until(lambda: stack.value("SELECT count(*) FROM run WHERE lost_at IS NOT NULL") == 4, "four are suspects")
    waiting = "SELECT id, backfill_id FROM run WHERE lost_at IS NOT NULL"
    _shows_suspects(stack, cli, monkeypatch, running(stack, 4)[0]["backfill_id"])
    while suspects := stack.query(waiting):
        first, *others = running(stack, 4)
        assert {(run["lost_at"], run["suspect_server"]) for run in others} == {(None, None)}
        if first["lost_at"] is not None:
            assert (first["suspect_server"], first["runs"]) == ("default", 1)
        else:
            # All slots of the other suspects' backfill are taken: one becomes free.
            first = next(run for run in others if run["backfill_id"] == suspects[0]["backfill_id"])
        succeed(stack, first)
        until(lambda id=first["attempt_id"]: _are_over(stack, [id]), "it ended")  # type: ignore[misc]
    assert stack.value("SELECT sum(lost_attempts) FROM run") == 0


def _shows_suspects(stack: Installation, cli: Cli, monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    point_at(stack, monkeypatch)
    out = cli("backfill", "show", id).out
    assert "(running) is retried alone, because its driver was lost\n" in out
    assert "(queued) is retried alone, because its driver was lost\n" in out
    assert "  time 1: the driver was lost: Spark lost the session (not counted)\n" in out


def _are_over(stack: Installation, attempts: list[int]) -> bool:
    return bool(stack.value("SELECT bool_and(state = 'ended') FROM attempt WHERE id = ANY(%s)", attempts))


def test_a_pool_whose_spark_server_keeps_dying_is_shown(
    stack: Installation, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one whose server died once. No run is a suspect."""
    point_at(stack, monkeypatch)
    starter(stack)
    stack.apply(daily(max_active_runs=3))
    id = stack.request("p", "2020-01-01", "2020-01-08")
    lost = running(stack, 3)
    lose(stack, lost, shared=True)
    attempts = [run["attempt_id"] for run in lost]
    until(lambda: _are_over(stack, attempts), "they ended")
    why = "the Spark server of the pool default keeps dying: attempts were lost with it in 3 of the last 10 minutes"
    assert json.loads(cli("backfill", "show", id, "--json").out)["held_back"] is None
    shifted = "UPDATE attempt SET ended_at = ended_at - (id - %s) * interval '1 minute' WHERE id = ANY(%s) RETURNING id"
    stack.query(shifted, min(attempts), attempts)
    (pool,) = json.loads(cli("pools", "list", "--json").out)
    assert (pool["pool"], pool["spark_lost"]) == ("default", 3)
    assert "in 3 of 10 minutes" in cli("pools", "list").out
    assert why in json.loads(cli("backfill", "show", id, "--json").out)["held_back"]
    assert stack.value("SELECT count(*) FROM run WHERE lost_at IS NOT NULL") == 0


@pytest.mark.long
def test_an_attempt_that_cannot_be_ended_keeps_no_other_lease_from_ending(stack: Installation) -> None:
    """A run of another release, whose losses this one cannot read."""
    settings = {"INSTANT_SECONDS": "3600", "RETROFILL_DRIVER_SLOTS": "8", "RETROFILL_LEASE_SECONDS": "3"}
    first = stack.start("instant-starter", settings)
    stack.apply(daily(max_active_runs=4))
    stack.request("p", "2020-01-01", "2020-01-04")
    started = running(stack, 4)
    bad = started[1]
    stack.query('UPDATE run SET losses = \'{"last": [{"unknown": 1}]}\' WHERE id = %s RETURNING id', bad["id"])
    second = stack.start("instant-starter", settings)
    first.kill()
    others = {run["attempt_id"] for run in started} - {bad["attempt_id"]}
    lost = "SELECT id FROM attempt WHERE outcome = 'lost'"
    until(lambda: others <= {row["id"] for row in stack.query(lost)}, "the others' leases end", second.said)
    (line,) = [line for line in second.said().splitlines() if "lease_set_aside" in line]
    assert json.loads(line)["attempt"] == bad["attempt_id"]
    assert "check_failed" not in second.said()
