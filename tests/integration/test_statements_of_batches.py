"""The SQL of attempts with chosen sizes and of very large ones."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.history import waiting
from tests.support.hot_paths import Hot, about_run, without_definitions
from tests.support.installation import Installation

from retrofill.sdk.names import MAX_BATCH
from retrofill.states import AttemptMode
from retrofill_core.contract.runs import AttemptEnded, RunBegan, RunStaged
from retrofill_core.contract.topics import RUN_STARTER
from run_starter.executors import LaunchRequest

# Enough that a statement for each would show.
MANY = 1_000


@pytest.fixture
def empty(installation: Installation) -> Hot:
    """An installation without history."""
    return Hot(installation)


def test_a_size_that_is_chosen_costs_one_statement_for_any_number_of_backfills(empty: Hot) -> None:
    auto: dict[str, Any] = {"batch_size": MAX_BATCH, "batch_target_seconds": 600.0}
    fixed = empty.claimed(waiting(empty.made, 1, 20, prefix="fixed-", limit=1))
    one = empty.claimed(waiting(empty.made, 1, 20, prefix="one-", limit=1, **auto))
    ids = waiting(empty.made, 50, 20, prefix="many-", limit=1, **auto)
    many = empty.claimed(ids)
    assert len(without_definitions(one)) == len(without_definitions(fixed)) + 1
    assert without_definitions(many) == without_definitions(one)
    launches = empty.take_launches()
    assert {len(launch.runs) for launch in launches} == {1}
    # Now there are attempts to read. Their number changes no statement.
    empty.reported([launch for launch in launches if launch.backfill_id in ids])
    again = empty.claimed(ids)
    assert without_definitions(again) == without_definitions(one)
    assert {len(launch.runs) for launch in empty.take_launches()} == {4}


def test_a_large_range_is_claimed_and_split_with_as_many_statements_as_a_small_one(empty: Hot) -> None:
    found = []
    for size in (2, MANY):
        ids = waiting(empty.made, 1, 2 * size, prefix=f"of-{size}-", limit=1, batch_size=size, batch_mode="range")
        claimed = empty.claimed(ids)
        (launch,) = empty.take_launches()
        assert len(launch.runs) == size
        lost = AttemptEnded(**launch.about, state="lost", begun=launch.runs[0].id)
        found.append([*without_definitions(claimed), *empty.heard([lost]).shapes()])
        split = "SELECT range_limit, count(*) AS n FROM run WHERE backfill_id = %s GROUP BY 1 ORDER BY 1"
        limits = [(row["range_limit"], row["n"]) for row in empty.made.query(split, *ids)]
        assert limits == [(size // 2, size), (None, size)]
    assert found[0] == found[1]


def test_a_large_range_times_out_with_as_many_statements_as_a_small_one(empty: Hot) -> None:
    found = []
    for size in (2, MANY):
        more: dict[str, Any] = {"batch_size": size, "batch_mode": "range", "run_timeout_seconds": 1.0}
        ids = waiting(empty.made, 1, 2 * size, prefix=f"of-{size}-", limit=1, **more)
        empty.claimed(ids)
        (launch,) = empty.take_launches()
        empty.heard([RunBegan(**about_run(launch, run)) for run in launch.runs])
        looked = empty.leases_looked_at()
        late = "UPDATE run SET times_out_at = now() WHERE backfill_id = %s AND times_out_at IS NOT NULL RETURNING id"
        assert len(empty.made.query(late, *ids)) == size
        interrupted = empty.interrupted()
        marked = "SELECT count(*) FROM run WHERE backfill_id = %s AND error->>'type' = 'RunTimedOut'"
        assert empty.made.value(marked, *ids) == size
        ended = empty.heard([AttemptEnded(**launch.about, state="lost", begun=launch.runs[0].id)])
        found.append([*looked.shapes(), *without_definitions(interrupted), *without_definitions(ended)])
        assert empty.made.value("SELECT count(*) FROM run WHERE backfill_id = %s AND error IS NULL", *ids) == 2 * size
    assert found[0] == found[1]


def test_what_is_left_of_a_lost_range_is_told_that_accepted_runs_still_publish_from_it(empty: Hot) -> None:
    ids = waiting(empty.made, 1, 8, limit=2, batch_size=4, batch_mode="range")
    empty.claimed(ids)
    lost, other = empty.take_launches()
    empty.reported([other])
    empty.heard([RunBegan(**about_run(lost, run)) for run in lost.runs])
    empty.heard([RunStaged(**about_run(lost, lost.runs[0]), outputs=("/nowhere",))])
    empty.heard([AttemptEnded(**lost.about, state="lost", begun=lost.runs[0].id)])
    empty.claimed(ids)
    (rest,) = (each for each in empty.take_launches() if each.mode == AttemptMode.RANGE)
    assert list(rest.as_json()["unpublished"]) == [lost.attempt_id]
    # Another host finds the same.
    derived: list[LaunchRequest | None] = []
    launching = empty.claims.starting.launching
    empty.sent(RUN_STARTER, lambda tx: derived.append(launching.derive(tx.conn, rest.attempt_id)))
    assert derived == [rest]
