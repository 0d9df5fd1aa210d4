"""Tables of runs, their cancels, the intervals of backfills, and task runs."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
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

from retrofill.states import TASK_RUN_MACHINE as TASK_MACHINE
from retrofill_core.domain.run import GOING, LIVE, MACHINE, UNFINISHED
from retrofill_core.store.tables.attempts import attempt
from retrofill_core.store.tables.backfills import (
    Moment,
    backfill,
    ended_exactly_when_terminal,
    is_in,
    known_state,
    lock_only,
    metadata,
)

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
    # How often it has begun, and the last attempt that it, or the run that it replaces, was part of.
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("attempt_id", BigInteger, ForeignKey(attempt.c.id)),
    # The most runs that a range with this one may have, after larger ones failed.
    Column("range_limit", Integer),
    # When a driver was last lost with it, which makes it a suspect: it is retried alone.
    Column("lost_at", Moment),
    # How many drivers were lost with it when it was a suspect.
    Column("lost_attempts", Integer, nullable=False, server_default=text("0")),
    # The most recent losses: {"last": [{"attempt": 1, "reason": "…", "counted": false, "shared": true}, …]}.
    Column("losses", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("queued_at", Moment, nullable=False, server_default=func.clock_timestamp()),
    Column("started_at", Moment),
    # When its present execution times out, unless its output is accepted before.
    Column("times_out_at", Moment),
    Column("finished_at", Moment),
    # Why it failed. While it runs: that it timed out, for which it fails once its attempt has ended.
    Column("error", JSONB(none_as_null=True)),
    # Output that the accepted attempt staged ({"folders": [path, …]}, for a review with the state of each place as
    # "bases", and those that others have changed since as "changed"), that attempt, and the publisher's fencing token.
    Column("outputs", JSONB),
    Column("accepted_attempt", BigInteger),
    Column("publication", Integer, nullable=False, server_default=text("0")),
    # After a publisher that was lost or could not publish it: when the next one may try, and why that is needed.
    Column("publish_after", Moment),
    Column("publish_error", JSONB(none_as_null=True)),
    # When it was staged, if it was held for a review: deadlines and averages count that as its end.
    Column("staged_at", Moment),
    # The review that it waits for: it is approved once its backfill was approved more often.
    Column("review", Integer, nullable=False, server_default=text("0")),
    # What it has published: {"outputs": [{"name": "lake.db.t", "version": "8"}, …]}.
    Column("published", JSONB(none_as_null=True)),
    # Archive with the attempt's code; null where the code is imported in place.
    Column("code_sha256", Text),
    # Of an undo: the run that it undoes, whose outputs it has from the start. And the run that undid this one.
    Column("restores", BigInteger),
    Column("undone_by", BigInteger),
    # The run that replaced it after a retry. Only rows without one count.
    Column("superseded_by", BigInteger),
    lock_only(),
    known_state(MACHINE),
    ended_exactly_when_terminal(MACHINE, "finished_at"),
    CheckConstraint(
        "state NOT IN ('publishing', 'staged') OR outputs IS NOT NULL AND accepted_attempt IS NOT NULL",
        name="publishes_something",
    ),
    CheckConstraint("interval_start < interval_end", name="interval_not_empty"),
    CheckConstraint(f"NOT ({is_in('state', LIVE)}) OR attempt_id IS NOT NULL", name="attempt_while_live"),
    CheckConstraint("superseded_by IS NULL OR state = 'failed'", name="only_failed_superseded"),
    # The live runs of an attempt, and whether one may be deleted.
    Index("run_attempt_idx", "attempt_id"),
    # Whether a backfill has runs that are live or wait for a publisher.
    Index("run_going_idx", "backfill_id", "state", postgresql_where=text(is_in("state", GOING))),
    # No data interval ever has two unfinished runs (invariant 3).
    Index(
        "run_interval_unfinished_key",
        "pipeline_no",
        "interval_start",
        unique=True,
        postgresql_where=text(is_in("state", UNFINISHED)),
    ),
    # One run of each position that is not superseded: two retries of a run cannot both commit.
    UniqueConstraint("backfill_id", "position", "superseded_by", postgresql_nulls_not_distinct=True),
    # The next runs to claim.
    Index("run_queued_idx", "backfill_id", "position", postgresql_where=text("state = 'queued'")),
    # The next accepted runs to publish, those to publish again after a pause, and those of one attempt.
    Index(
        "run_staged_idx",
        *("backfill_id", "review", "position"),
        postgresql_where=text("state = 'staged' AND publish_after IS NULL"),
    ),
    Index(
        "run_put_off_idx",
        *("backfill_id", "publish_after"),
        postgresql_where=text("state = 'staged' AND publish_after IS NOT NULL"),
    ),
    Index("run_accepted_idx", "accepted_attempt", postgresql_where=text("state = 'staged'")),
    # The next suspects to claim.
    Index(
        "run_suspect_idx", "backfill_id", "lost_at", postgresql_where=text("state = 'queued' AND lost_at IS NOT NULL")
    ),
    # Whether a run failed since the last resume, and which may be retried.
    Index(
        "run_failed_idx",
        "backfill_id",
        "position",
        postgresql_where=text("state = 'failed' AND superseded_by IS NULL"),
    ),
    # Runtimes of a pipeline's last successes.
    Index("run_succeeded_idx", "pipeline_no", "finished_at", postgresql_where=text("state = 'succeeded'")),
    # The finished runs of an interval.
    Index(
        "run_interval_idx",
        "pipeline_no",
        "interval_start",
        "id",
        postgresql_where=text("state IN ('failed', 'succeeded')"),
    ),
    # Those of which it has a part, of whatever schedule, which decide on reprocessing.
    Index(
        "run_span_idx",
        text("int8range(pipeline_no, pipeline_no, '[]')"),
        text("tstzrange(interval_start, interval_end)"),
        postgresql_using="gist",
        postgresql_where=text("state IN ('failed', 'succeeded')"),
    ),
)

# Runs that a user asked to cancel. The run's state shows what became of it.
run_cancel = Table(
    "run_cancel",
    metadata,
    Column("backfill_id", Text, ForeignKey(backfill.c.id), primary_key=True),
    Column("run_id", BigInteger, primary_key=True),
    # The command, if it had one.
    Column("ce_id", Text),
    Column("requested_at", Moment, nullable=False, server_default=func.clock_timestamp()),
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
