"""Plans one backfill as the planner does, in its own process for memory measurement.

Arguments: DSN, name, runs and alerts.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from datetime import UTC, datetime, timedelta

from tests.support.definitions import alert, daily
from tests.support.installation import PARTITIONS

from backfill_planner.answers import Request
from backfill_planner.requests import KnownIntervals, answer_request
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.transaction import shard_transaction
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.topics import PLANNER, Topic
from retrofill_core.settings import Settings
from retrofill_core.store import pipelines, planning
from retrofill_core.store.engine import make_engine

FIRST = datetime(1990, 1, 1, tzinfo=UTC)
TICK = timedelta(minutes=30)
# Far in the future: every deadline is armed and none comes due.
YEARS = timedelta(days=365 * 60).total_seconds()
MAX_BYTES = 900_000


def peak() -> float:
    """Peak memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(dsn: str, name: str, runs: int, alerts: int) -> dict[str, float]:
    """Seconds of the transaction, and memory growth of the process."""
    rules = [alert(f"late-{n}", "LOGICAL_DATE", YEARS) for n in range(alerts)]
    engine = make_engine(dsn, name)
    with shard_transaction(engine, PLANNER, 0, 0, MAX_BYTES) as tx:
        pipelines.put(tx.conn, daily(name, schedule="*/30 * * * *", start="1980-01-01", deadlines=rules))
    with engine.connect() as conn:
        stored = pipelines.find(conn, {name})[name]
    last = FIRST + (runs - 1) * TICK
    body = BackfillRequested.model_validate({"pipeline": name, "from": FIRST.isoformat(), "to": last.isoformat()})
    request = Request(name, body, Record(Topic.BACKFILL_REQUESTS, 0, 0, name.encode(), b"{}", {}, (), 0))
    before = peak()
    intervals = KnownIntervals(runs)
    intervals.add(stored, body)  # before the transaction, as the planner does
    began = time.monotonic()
    with shard_transaction(engine, PLANNER, 0, 0, MAX_BYTES) as tx:
        planning.lock_pipelines(tx.conn, [stored.no])
        outcome = answer_request(tx, request, {}, stored, intervals, Settings(), PARTITIONS)
    seconds = time.monotonic() - began
    assert outcome.answer_type == "BackfillPlanned", outcome
    engine.dispose()
    return {"seconds": seconds, "grown": peak() - before}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
