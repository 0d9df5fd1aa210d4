"""Tables of runs, the intervals of backfills, and task runs."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from retrofill.domain.run import LIVE, MACHINE, UNFINISHED
from retrofill.domain.task_run import MACHINE as TASK_MACHINE
from retrofill.store.tables.backfills import backfill
from retrofill.store.tables.base import Moment, ended_exactly_when_terminal, is_in, known_state, lock_only, metadata

run = Table(
    "run",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("backfill_id", Text, ForeignKey(backfill.c.id), nullable=False),
    Column("pipeline_no", BigInteger, nullable=False),
    Column("interval_start", Moment, nullable=False),
    Column("interval_end", Moment, nullable=False),
    # Start order within the backfill: 0, 1, … by logical date, reversed on request.
    Column("position", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("lost_attempts", Integer, nullable=False, server_default=text("0")),
    # The most recent losses: {"last": [{"attempt": 1, "reason": "…"}, …]}.
    Column("losses", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("slot", Integer),
    Column("pipeline_slot", Integer),
    Column("lease_until", Moment),
    # Length of the attempt's lease, fixed at the claim, so that its driver and every owner
    # of the shard use the same number.
    Column("lease_seconds", Double),
    Column("cancel_requested", Boolean, nullable=False, server_default=text("false")),
    Column("host", Text),
    Column("queued_at", Moment, nullable=False, server_default=func.clock_timestamp()),
    Column("started_at", Moment),
    Column("finished_at", Moment),
    Column("error", JSONB),
    # Output the accepted attempt staged ({"folders": [path, …]}), and the publisher's fencing
    # token.
    Column("outputs", JSONB),
    Column("publication", Integer, nullable=False, server_default=text("0")),
    # Archive with the attempt's code; null where the code is imported in place.
    Column("code_sha256", Text),
    lock_only(),
    known_state(MACHINE),
    ended_exactly_when_terminal(MACHINE, "finished_at"),
    CheckConstraint("state <> 'publishing' OR outputs IS NOT NULL", name="publishes_something"),
    CheckConstraint("interval_start < interval_end", name="interval_not_empty"),
    CheckConstraint("slot >= 1 AND pipeline_slot >= 1", name="slots_from_one"),
    CheckConstraint(f"({is_in('state', LIVE)}) = (slot IS NOT NULL)", name="slot_while_live"),
    CheckConstraint(f"({is_in('state', LIVE)}) = (pipeline_slot IS NOT NULL)", name="pipeline_slot_while_live"),
    CheckConstraint(f"({is_in('state', LIVE)}) = (lease_until IS NOT NULL)", name="lease_while_live"),
    # Limits hold (invariant 4): two live runs never hold the same slot, so there are never
    # more live runs than slots.
    Index("run_slot_key", "backfill_id", "slot", unique=True, postgresql_where=text("slot IS NOT NULL")),
    Index(
        "run_pipeline_slot_key",
        "pipeline_no",
        "pipeline_slot",
        unique=True,
        postgresql_where=text("pipeline_slot IS NOT NULL"),
    ),
    # No data interval ever has two unfinished runs (invariant 3).
    Index(
        "run_interval_unfinished_key",
        "pipeline_no",
        "interval_start",
        unique=True,
        postgresql_where=text(is_in("state", UNFINISHED)),
    ),
    UniqueConstraint("backfill_id", "position"),
    # The next runs to claim.
    Index("run_queued_idx", "backfill_id", "position", postgresql_where=text("state = 'queued'")),
    # Whether a run failed since the last resume.
    Index("run_failed_idx", "backfill_id", "finished_at", postgresql_where=text("state = 'failed'")),
    # Runtimes of a pipeline's last successes.
    Index("run_succeeded_idx", "pipeline_no", "finished_at", postgresql_where=text("state = 'succeeded'")),
    # The latest finished run of an interval, which decides on reprocessing.
    Index(
        "run_interval_idx",
        "pipeline_no",
        "interval_start",
        "id",
        postgresql_where=text("state IN ('failed', 'succeeded')"),
    ),
)

backfill_interval = Table(
    "backfill_interval",
    metadata,
    Column("backfill_id", Text, ForeignKey(backfill.c.id), primary_key=True),
    Column("interval_start", Moment, primary_key=True),
    Column("interval_end", Moment, nullable=False),
    Column("run_id", BigInteger),
    Column("reason", Text),
    CheckConstraint("(run_id IS NULL) <> (reason IS NULL)", name="run_or_reason"),
)

task_run = Table(
    "task_run",
    metadata,
    Column("run_id", BigInteger, ForeignKey(run.c.id), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("task", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("try_number", Integer, nullable=False, server_default=text("0")),
    Column("started_at", Moment),
    Column("finished_at", Moment),
    Column("error", JSONB),
    known_state(TASK_MACHINE),
    ended_exactly_when_terminal(TASK_MACHINE, "finished_at"),
)
