"""Accepted runs that wait for publishers: a check reads those that it gives one, however many wait."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.history import waiting
from tests.support.hot_paths import Hot, without_definitions
from tests.support.servers import Servers
from tests.support.statements import entries_read
from tests.support.tiers import some

from retrofill.states import AttemptMode
from run_starter.claims.publishing import PUBLISHED_AT_ONCE

FEW, MANY = 300, 3_000
LIMIT = 2
_ATTEMPTS = """
INSERT INTO attempt (backfill_id, pipeline_no, mode, position, runs, state, host, lease_seconds, code, began_at,
                     ended_at, outcome)
SELECT b.id, b.pipeline_no, 'each', n, 1, 'ended', 'made', 15, b.definition -> 'code', clock_timestamp(),
       clock_timestamp(), 'done'
FROM backfill AS b, generate_series(0, b.runs - 1) AS n WHERE b.id = %s RETURNING id
"""
_STAGED = """
UPDATE run SET state = 'staged', attempt = 1, attempt_id = a.id, accepted_attempt = a.id, started_at = clock_timestamp(),
               outputs = jsonb_build_object('folders', jsonb_build_array('/out/' || run.position))
FROM attempt AS a WHERE a.backfill_id = run.backfill_id AND a.position = run.position AND run.backfill_id = %s RETURNING run.id
"""
STATES = {
    "ready": "publish_after = NULL",
    "ready after a pause": "publish_after = clock_timestamp() - interval '1 s'",
    "most pause": f"publish_after = CASE WHEN position >= {FEW} THEN 'infinity'::timestamptz END",
    "most wait for another review": f"review = CASE WHEN position >= {FEW} THEN 1 ELSE 0 END",
    "all pause": "publish_after = 'infinity'",
    "all wait for another review": "review = 1",
}


@pytest.fixture(scope="module")
def hot(servers: Servers) -> Iterator[Hot]:
    made = servers.installation()
    yield Hot(made)
    made.close()


def staged(hot: Hot, count: int, state: str) -> str:
    """A backfill of runs that attempts of one run each have staged."""
    prefix = f"{state.replace(' ', '-')}-{count}-"
    (id,) = waiting(hot.made, 1, count, prefix=prefix, limit=LIMIT)
    hot.made.query(_ATTEMPTS, id)
    hot.made.query(_STAGED, id)
    hot.made.query(f"UPDATE run SET {STATES[state]} WHERE backfill_id = %s RETURNING id", id)
    with hot.made.session() as conn:
        for table in (b"run", b"attempt"):
            conn.execute(b"ANALYZE " + table)
        conn.commit()
    return id


@pytest.mark.parametrize("state", some(STATES, "most pause", "most wait for another review"))
def test_a_check_reads_only_what_it_gives_publishers(hot: Hot, state: str) -> None:
    found, shapes = list[int](), list[list[str]]()
    for count in (FEW, MANY):
        id = staged(hot, count, state)
        with hot.made.session() as conn:
            read = hot.claimed([id])
            shapes.append(without_definitions(read))
            selects = [each for each in read.statements if "publish_after" in each.text.partition("WHERE")[2]]
            # Explained when the runs have their publishers, which changes nothing of what waits.
            hot.made.query(
                "UPDATE run SET state = 'staged' WHERE backfill_id = %s AND state = 'publishing' RETURNING id", id
            )
            found.append(max(entries_read(conn, each, "run") for each in selects))
        launches = hot.take_launches()
        assert {launch.mode for launch in launches} <= {AttemptMode.PUBLISH}
        ready = 0 if state.startswith("all") else FEW
        assert sum(len(launch.runs) for launch in launches) == min(ready, LIMIT * PUBLISHED_AT_ONCE)
        assert len(launches) == (LIMIT if ready else 0)
        assert [run.id for launch in launches for run in launch.runs] == sorted(
            run.id for launch in launches for run in launch.runs
        )
    assert shapes[0] == shapes[1]
    # Of a small table, all of it may be cheaper.
    assert found[1] <= LIMIT * PUBLISHED_AT_ONCE
