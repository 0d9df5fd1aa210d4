"""The cost of a freed slot while a thousand backfills of one pipeline wait for one.

Counts statements, commits and rows; measures no time.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import Engine, text
from tests.support.definitions import daily
from tests.support.installation import PARTITIONS, Installation
from tests.support.statements import Recorded, recorded

from benchmarks.core import Benchmark, Figure, figure
from benchmarks.support.servers import installed, servers
from retrofill.bus.envelope import Record
from retrofill.bus.handler import Received
from retrofill.bus.observability import metrics
from retrofill.bus.service import Context
from retrofill.bus.takeover import TopicIds
from retrofill.bus.transaction import Transaction, shard_transaction
from retrofill.bus.worker.checks import CHECKS_PER_PASS
from retrofill.contract.runs import AttemptEnded, Report, RunBegan, RunReported
from retrofill.contract.topics import RUN_STARTER, Topic
from retrofill.domain.names import DEFAULT_POOL
from retrofill.store.engine import make_engine, writes
from run_starter.executors import Key, LaunchRequest
from run_starter.handler import DRIVER_FREE, StarterHandler

HISTORY_RUNS = int(os.environ.get("BENCH_HISTORY", "1000000"))
WAITING = (1, 1000)
SLOTS = 4
FREED = 5
# The server's count for this transaction only: earlier counts are flushed first.
_ROWS_FETCHED = """
SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint
FROM pg_stat_xact_user_tables, pg_stat_force_next_flush() WHERE schemaname = 'retrofill'
"""
_PIPELINES = """
INSERT INTO pipeline (name, definition, definition_hash, max_active_runs)
SELECT n, jsonb_set(%(definition)s, '{name}', to_jsonb(n)), 'made', %(slots)s FROM unnest(ARRAY['old', 'many']) AS n
"""
_BACKFILLS = """
INSERT INTO backfill (id, pipeline_no, pipeline, shard, state, covers, runs, max_active_runs, reprocess_behavior,
                      run_backwards, on_run_failure, conf, definition, ended_at)
SELECT p.name || '-' || n, p.no, p.name, 0, %(state)s,
       tstzrange('2000-01-01Z'::timestamptz + n * %(runs)s * interval '1 hour',
                 '2000-01-01Z'::timestamptz + (n + 1) * %(runs)s * interval '1 hour'),
       %(runs)s, %(slots)s, 'none', false, 'pause', '{}', p.definition,
       CASE WHEN %(state)s = 'succeeded' THEN clock_timestamp() END
FROM pipeline AS p, generate_series(0, %(backfills)s - 1) AS n WHERE p.name = %(pipeline)s
"""
# One for each run of backfills that have ended.
_ATTEMPTS = """
INSERT INTO attempt (backfill_id, pipeline_no, mode, position, runs, state, host, lease_seconds, code, began_at, ended_at,
                     outcome)
SELECT b.id, b.pipeline_no, 'each', n, 1, 'ended', 'made', 15, b.definition -> 'code', b.ended_at, b.ended_at, 'done'
FROM backfill AS b, generate_series(0, %(runs)s - 1) AS n WHERE b.pipeline = %(pipeline)s AND b.ended_at IS NOT NULL
"""
_RUNS = """
INSERT INTO run (backfill_id, pipeline_no, interval_start, interval_end, position, state, attempt, attempt_id, started_at,
                 finished_at)
SELECT b.id, b.pipeline_no, lower(b.covers) + n * interval '1 hour', lower(b.covers) + (n + 1) * interval '1 hour', n,
       CASE WHEN b.ended_at IS NULL THEN 'queued' ELSE 'succeeded' END, CASE WHEN b.ended_at IS NULL THEN 0 ELSE 1 END, a.id,
       b.ended_at, b.ended_at
FROM backfill AS b CROSS JOIN generate_series(0, %(runs)s - 1) AS n
     LEFT JOIN attempt AS a ON a.backfill_id = b.id AND a.position = n
WHERE b.pipeline = %(pipeline)s
"""


@dataclass
class Drivers:
    """An executor that only records its launches."""

    launched: list[LaunchRequest] = field(default_factory=list)

    def free(self) -> int:
        return SLOTS - len(self.launched)

    def ending(self, keys: Collection[Key]) -> None:
        """No-op: ``end_one`` has taken the launch out before it reports."""

    def launch(self, launch: LaunchRequest) -> None:
        self.launched.append(launch)

    def hosted(self) -> set[Key]:
        """No driver needs watching."""
        return set()

    def end(self, key: Key) -> None:
        """No-op: drivers end only through ``end_one``."""

    def close(self) -> None:
        """No-op: there are no real drivers."""


@dataclass
class Counted:
    """The cost of transactions."""

    commits: int = 0
    rows: int = 0
    sent: Recorded = field(default_factory=Recorded)


@dataclass
class Owner:
    """The owner of shard 0: the real handler, called in the same transactions as by the bus."""

    engine: Engine
    handler: StarterHandler
    drivers: Drivers
    checks: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def transaction(self, counted: Counted) -> Iterator[Transaction]:
        """A transaction whose cost is added to ``counted``."""
        with shard_transaction(self.engine, RUN_STARTER, 0, 0, 900_000) as tx:
            before = writes(tx.conn)
            with recorded(self.engine) as sent:
                yield tx
            # Without any, the transaction is rolled back.
            counted.commits += bool(tx.outgoing) or writes(tx.conn) > before
            counted.rows += tx.conn.execute(text(_ROWS_FETCHED)).scalar_one()
        counted.sent.statements += sent.statements
        self.add(tx.checks)

    def add(self, checks: Mapping[str, float]) -> None:
        """Schedule checks."""
        for key, after in checks.items():
            self.checks[key] = min(after, self.checks.get(key, after))

    def check(self, counted: Counted) -> None:
        """Run due checks, pass by pass, until none is due."""
        while due := [key for key, after in self.checks.items() if after <= 0]:
            for group in self.handler.group(due):
                keys = group[:CHECKS_PER_PASS]
                for key in keys:
                    del self.checks[key]
                with self.transaction(counted) as tx:
                    self.handler.check(tx, keys)

    def end_one(self, counted: Counted) -> None:
        """Report the first live run as succeeded: the next one gets its slot."""
        launch = self.drivers.launched.pop(0)
        (run,) = launch.runs
        about = {**launch.about, "run_id": run.id, "attempt": run.attempt}
        reports = [
            RunBegan(**about),
            RunReported(**about, state="succeeded"),
            AttemptEnded(**launch.about, state="done"),
        ]
        with self.transaction(counted) as tx:
            self.handler.handle(tx, [_received(report) for report in reports])
        for checks in self.handler.notified(DRIVER_FREE, "", [0]).values():
            self.add(checks)
        self.check(counted)


def _received(report: Report) -> Received:
    record = Record(Topic.RUN_REPORTS, 0, 0, report.backfill_id.encode(), report.encode(), {}, (), 0)
    return Received(record, report.backfill_id, report, "ce")


@contextmanager
def owner(made: Installation) -> Iterator[Owner]:
    """The owner of shard 0, after its first checks."""
    settings = made.settings.acting_as(RUN_STARTER.name)
    engine = make_engine(settings.dsn_of(RUN_STARTER.name), "bench")
    drivers = Drivers()
    ids = TopicIds(settings, RUN_STARTER, "bench")
    context = Context(settings, RUN_STARTER, "bench", engine, ids, PARTITIONS, "bench", lambda: None, lambda *_: None)
    gauges = set(metrics.REGISTRY._collector_to_names)
    handler = StarterHandler(context, {DEFAULT_POOL: drivers})
    try:
        found = Owner(engine, handler, drivers)
        with engine.connect() as conn:
            found.add(handler.taken(conn, 0))
        found.check(Counted())
        yield found
    finally:
        handler.close()
        engine.dispose()
        for gauge in set(metrics.REGISTRY._collector_to_names) - gauges:
            metrics.REGISTRY.unregister(gauge)


def fill(made: Installation, waiting: int, history: int = HISTORY_RUNS) -> None:
    """Insert ``waiting`` running backfills of one pipeline, and another pipeline's history."""
    with made.session() as conn:
        insert = partial(_insert, conn, definition=json.dumps(daily().as_json()), slots=SLOTS)
        insert(_PIPELINES)
        if history:
            insert(_BACKFILLS, pipeline="old", state="succeeded", backfills=history // 1000, runs=1000)
            insert(_ATTEMPTS, pipeline="old", runs=1000)
            insert(_RUNS, pipeline="old", runs=1000)
        insert(_BACKFILLS, pipeline="many", state="running", backfills=waiting, runs=20)
        insert(_RUNS, pipeline="many", runs=20)
        conn.commit()
        conn.autocommit = True
        conn.execute("VACUUM ANALYZE")


def _insert(conn: object, statement: str, **values: object) -> None:
    conn.execute(statement.encode(), values)  # type: ignore[attr-defined]  # psycopg's types cannot be imported here


def freed(made: Installation, waiting: int) -> Counted:
    """The total cost of freeing ``FREED`` slots, one after the other."""
    fill(made, waiting)
    counted = Counted()
    with owner(made) as owned:
        assert len(owned.drivers.launched) == SLOTS, "all slots are taken"
        for _ in range(FREED):
            owned.end_one(counted)
            assert len(owned.drivers.launched) == SLOTS, "the slot was taken again"
    return counted


def run() -> Sequence[Figure]:
    """Measure a single backfill, and a thousand that wait for the same slots."""
    figures = []
    with servers() as on:
        for waiting in WAITING:
            with installed(on) as made:
                counted = freed(made, waiting)
            for what, count in (
                ("commits", counted.commits),
                ("statements", len(counted.sent.statements)),
                ("rows fetched", counted.rows),
            ):
                figures.append(figure(f"{what}, {waiting:,} of one pipeline", "a freed slot", [count / FREED]))
            shapes = Counter(statement.text.split("\n")[0][:90] for statement in counted.sent.statements)
            assert shapes
    return figures


BENCHMARK = Benchmark(
    "claims_scale",
    "what the run-starter does from the reports of a run's end until the next run has its slot, with"
    f" {HISTORY_RUNS:,} finished runs in the tables (BENCH_HISTORY sets how many), when one backfill and when a"
    " thousand of one pipeline have runs to start",
    "one backfill",
    "the same for a thousand, but for a few rows",
    run,
)
