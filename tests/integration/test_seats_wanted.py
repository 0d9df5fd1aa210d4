"""The query by which KEDA scales run-starters, on rows that the services wrote."""

from __future__ import annotations

from pathlib import Path

import psycopg
from tests.support.definitions import daily
from tests.support.installation import Installation, until

from retrofill_core.contract.backfills import BackfillPauseRequested
from retrofill_core.contract.topics import Topic

QUERY = (Path(__file__).parents[2] / "deploy" / "helm" / "retrofill" / "files" / "seats.sql").read_text()
LIVE = "SELECT count(*) FROM attempt WHERE slot IS NOT NULL"


def wanted(stack: Installation, condition: str = "true") -> int:
    """What KEDA reads, with the rights that it has."""
    with psycopg.connect(stack.settings.dsn_of("reader")) as conn:
        (row,) = conn.execute(f"{QUERY} WHERE {condition}".encode()).fetchall()
        return int(row[0])


def ask(stack: Installation, pipeline: str, first: str, last: str, limit: int) -> str:
    id = stack.request(pipeline, first, last, max_active_runs=limit)
    assert stack.outcome(id).body["type"] == "BackfillPlanned"
    return id


def test_it_counts_what_limits_let_start_and_what_is_live(installation: Installation) -> None:
    stack = installation
    stack.start("backfill-planner")
    stack.apply(daily(max_active_runs=5, batch_size=10))
    stack.apply(daily("gpu", pool="gpu", max_active_runs=9))
    assert wanted(stack) == 0
    first = ask(stack, "p", "2020-01-01", "2020-03-31", 3)
    assert wanted(stack) == 3
    # Both together: the pipeline's limit.
    second = ask(stack, "p", "2020-04-01", "2020-06-30", 4)
    assert wanted(stack) == 5
    # No more than runs are left; the pool with most counts, of those that are asked about.
    ask(stack, "gpu", "2020-01-01", "2020-01-02", 9)
    assert [wanted(stack, f"pool = '{pool}'") for pool in ("default", "gpu", "none")] == [5, 2, 0]
    assert wanted(stack) == 5
    stack.start("instant-starter", RETROFILL_DRIVER_SLOTS="2", INSTANT_SECONDS="3600")
    until(lambda: stack.value(LIVE) == 2, "its two drivers work")
    assert wanted(stack, "pool IN ('default')") == 5
    # A paused backfill keeps the seats of its live attempts, and starts nothing.
    for id in (first, second):
        stack.publish(Topic.BACKFILL_REQUESTS, id, BackfillPauseRequested())
        stack.wait_state(id, "paused")
    assert wanted(stack, "pool NOT IN ('gpu')") == stack.value(LIVE) == 2
