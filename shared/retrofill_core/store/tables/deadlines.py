"""Tables of deadlines and their digests."""

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
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from retrofill_core.domain.deadline import MACHINE
from retrofill_core.store.tables.base import Moment, ended_exactly_when_terminal, known_state, metadata
from retrofill_core.store.tables.runs import run

deadline = Table(
    "deadline",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    # Partition of the id as text.
    Column("shard", Integer, nullable=False),
    Column("alert", Text, nullable=False),
    Column("pipeline", Text, nullable=False),
    Column("backfill_id", Text, nullable=False),
    # Null for a deadline of the whole backfill.
    Column("run_id", BigInteger, ForeignKey(run.c.id)),
    # For a deadline of one task.
    Column("task", Text),
    Column("reference", Text, nullable=False),
    Column("interval_seconds", Double),
    Column("due_at", Moment, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("fire_on_failure", Boolean, nullable=False, server_default=text("false")),
    Column("callback", Text),
    Column("callback_kind", Text, nullable=False, server_default=text("'function'")),
    Column("callback_options", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("kwargs", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("digest_seconds", Double),
    # The digest that reports its miss: the id of the deadline that opened it.
    Column("digest_id", BigInteger),
    Column("decided_at", Moment),
    # Missed, and succeeded later.
    Column("recovered_at", Moment),
    known_state(MACHINE),
    ended_exactly_when_terminal(MACHINE, "decided_at"),
    # One deadline per run and alert: a later attempt does not arm it again.
    UniqueConstraint("run_id", "alert"),
    CheckConstraint("recovered_at IS NULL OR state = 'missed'", name="recovered_after_a_miss"),
    Index("deadline_of_backfill_key", "backfill_id", "alert", unique=True, postgresql_where=text("run_id IS NULL")),
    # The next due deadlines of a shard; by id too, as thousands of a plan may share a moment.
    Index("deadline_due_idx", "shard", "due_at", "id", postgresql_where=text("state = 'armed'")),
    Index(
        "deadline_armed_of_backfill_idx",
        "shard",
        "due_at",
        postgresql_where=text("state = 'armed' AND run_id IS NULL"),
    ),
    # The first misses of a digest, and their number.
    Index(
        "deadline_missed_in_digest_idx",
        "digest_id",
        "decided_at",
        "due_at",
        "id",
        postgresql_where=text("digest_id IS NOT NULL"),
    ),
)

# Misses of one alert, collected into one event. The id is that of the deadline that opened the
# digest, so its shard is the partition of its id too, and its callback is that deadline's.
deadline_digest = Table(
    "deadline_digest",
    metadata,
    Column("id", BigInteger, ForeignKey(deadline.c.id), primary_key=True),
    Column("shard", Integer, nullable=False),
    Column("pipeline", Text, nullable=False),
    Column("alert", Text, nullable=False),
    # Callback and length of the window: misses before and after an edit of the pipeline do not mix.
    Column("target", Text, nullable=False),
    Column("opened_at", Moment, nullable=False),
    Column("closes_at", Moment, nullable=False),
    Column("closed_at", Moment),
    # One open window per alert, whichever watchers see the misses.
    Index(
        "deadline_digest_open_key",
        "pipeline",
        "alert",
        "target",
        unique=True,
        postgresql_where=text("closed_at IS NULL"),
    ),
    Index("deadline_digest_open_idx", "shard", "closes_at", postgresql_where=text("closed_at IS NULL")),
)
