"""The tables: constraints and partial unique indexes are the locks, each with the invariant that it holds.

Only this schema's owner creates them (``store/migrations``); who may write which is in ``store/roles.py``.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, TSTZRANGE, ExcludeConstraint

from retrofill.domain import backfill as backfill_domain
from retrofill.domain import callback as callback_domain
from retrofill.domain import deadline as deadline_domain
from retrofill.domain import run as run_domain
from retrofill.domain import task_run as task_run_domain
from retrofill.domain.machine import Machine

SCHEMA = "retrofill"
# The newest migration: what these tables are made by, and the oldest schema that this release works with.
REVISION = "0010"
metadata = MetaData(
    schema=SCHEMA,
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    },
)

Moment = DateTime(timezone=True)


def _in(column: str, states: tuple[str, ...] | frozenset[str]) -> str:
    """An SQL condition: the state is one of these."""
    return f"{column} IN ({', '.join(repr(str(state)) for state in sorted(states))})"


def _known_state(machine: Machine) -> CheckConstraint:
    return CheckConstraint(_in("state", machine.states), name="state_known")


def _ended_exactly_when_terminal(
    machine: Machine, column: str, ended: tuple[str, ...] | None = None
) -> CheckConstraint:
    states = machine.terminal if ended is None else ended
    return CheckConstraint(f"({_in('state', states)}) = ({column} IS NOT NULL)", name=f"{column}_when_terminal")


def _lock_only() -> Column[int | None]:
    """Nobody writes it: the grant to update it is the right to lock the row."""
    return Column("lock_only", SmallInteger)


pipeline = Table(
    "pipeline",
    metadata,
    Column("name", Text, primary_key=True),
    # A number for each pipeline, so that a range of it can stand in an exclusion constraint without btree_gist.
    Column("no", BigInteger, Identity(always=True), nullable=False, unique=True),
    Column("definition", JSONB, nullable=False),
    Column("definition_hash", Text, nullable=False),
    Column("max_active_runs", Integer, nullable=False),
    Column("applied_at", Moment, nullable=False, server_default=func.clock_timestamp()),
    Column("removed_at", Moment),
    _lock_only(),
)

# pipelines messages that were applied where they arrived and published again: the copy is not applied again.
pipeline_copy = Table(
    "pipeline_copy",
    metadata,
    Column("ce_id", Text, primary_key=True),
    Column("value_hash", Text, nullable=False),
    Column("applied_at", Moment, nullable=False, server_default=func.clock_timestamp()),
)

backfill = Table(
    "backfill",
    metadata,
    Column("id", Text, primary_key=True),
    Column("pipeline_no", BigInteger, ForeignKey(pipeline.c.no), nullable=False),
    Column("pipeline", Text, nullable=False),
    Column("shard", Integer, nullable=False),
    Column("state", Text, nullable=False),
    # From the first interval's start to the last one's end.
    Column("covers", TSTZRANGE, nullable=False),
    Column("runs", Integer, nullable=False),
    Column("max_active_runs", Integer, nullable=False),
    Column("reprocess_behavior", Text, nullable=False),
    Column("run_backwards", Boolean, nullable=False),
    Column("on_run_failure", Text, nullable=False),
    Column("conf", JSONB, nullable=False),
    Column("triggered_by", Text),
    # The pipeline as it was when this was planned: later edits change later backfills only.
    Column("definition", JSONB, nullable=False),
    # Its runs use the code that was applied last when they start, not that of the definition.
    Column("code_follows", Boolean, nullable=False, server_default=text("false")),
    Column("requested_at", Moment, nullable=False, server_default=func.clock_timestamp()),
    Column("resumed_at", Moment),
    # How many of its runs had failed when it was last resumed: more than that have failed since.
    Column("failed_before", Integer, nullable=False, server_default=text("0")),
    # The trace context of its plan, for the spans of its runs.
    Column("traceparent", Text),
    Column("cancel_cause", Text),
    Column("ended_at", Moment),
    # When the purge began that took all of it that can go.
    Column("purged_at", Moment),
    _lock_only(),
    _known_state(backfill_domain.MACHINE),
    _ended_exactly_when_terminal(backfill_domain.MACHINE, "ended_at"),
    CheckConstraint("runs > 0", name="runs_exist"),
    CheckConstraint("NOT isempty(covers)", name="covers_something"),
    CheckConstraint("state <> 'cancelling' OR cancel_cause IS NOT NULL", name="cancel_has_a_cause"),
    # No overlap (invariant 3): however many planners race, the second of two overlapping active backfills cannot be.
    ExcludeConstraint(
        (text("int8range(pipeline_no, pipeline_no, '[]')"), "&&"),
        ("covers", "&&"),
        where=text(_in("state", backfill_domain.ACTIVE)),
        using="gist",
        name="backfill_no_overlap",
    ),
    # An owner that takes over a shard puts in all active ones.
    Index("backfill_active_idx", "shard", postgresql_where=text(_in("state", backfill_domain.ACTIVE))),
    # Those of a pipeline that could use a free slot, the first ones first.
    Index(
        "backfill_active_of_pipeline_idx",
        "pipeline_no",
        "shard",
        "requested_at",
        postgresql_where=text(_in("state", backfill_domain.ACTIVE)),
    ),
    Index("backfill_pipeline_idx", "pipeline", "requested_at"),
    Index("backfill_requested_idx", "requested_at"),
    # What a purge has not been through, in the order of the ends.
    Index(
        "backfill_to_purge_idx", "ended_at", "id", postgresql_where=text("ended_at IS NOT NULL AND purged_at IS NULL")
    ),
    # When the last purge was, and which of those that it was through overlap with a later backfill.
    Index("backfill_purged_at_idx", "purged_at", postgresql_where=text("purged_at IS NOT NULL")),
    Index(
        "backfill_purged_idx",
        text("int8range(pipeline_no, pipeline_no, '[]')"),
        "covers",
        postgresql_using="gist",
        postgresql_where=text("purged_at IS NOT NULL"),
    ),
)

# One id, one outcome (invariant 2): the key refuses a second one.
backfill_request = Table(
    "backfill_request",
    metadata,
    Column("id", Text, primary_key=True),
    Column("body_hash", Text, nullable=False),
    Column("answer_type", Text, nullable=False),
    Column("answer", JSONB, nullable=False),
    Column("decided_at", Moment, nullable=False, server_default=func.clock_timestamp()),
)

# Commands are told apart by ce_id: a repeat gets the recorded answer.
backfill_command = Table(
    "backfill_command",
    metadata,
    Column("backfill_id", Text, primary_key=True),
    Column("ce_id", Text, primary_key=True),
    Column("answer_type", Text, nullable=False),
    Column("answer", JSONB, nullable=False),
    Column("decided_at", Moment, nullable=False, server_default=func.clock_timestamp()),
)

run = Table(
    "run",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("backfill_id", Text, ForeignKey(backfill.c.id), nullable=False),
    Column("pipeline_no", BigInteger, nullable=False),
    Column("interval_start", Moment, nullable=False),
    Column("interval_end", Moment, nullable=False),
    # The order in which runs of the backfill start: 0, 1, … in logical-date order, reversed when asked.
    Column("position", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("lost_attempts", Integer, nullable=False, server_default=text("0")),
    # The last of them: {"last": [{"attempt": 1, "reason": "…"}, …]}.
    Column("losses", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("slot", Integer),
    Column("pipeline_slot", Integer),
    Column("lease_until", Moment),
    # How long the attempt's lease is, from its claim on: its driver and every owner of the shard go by the same number.
    Column("lease_seconds", Double),
    Column("cancel_requested", Boolean, nullable=False, server_default=text("false")),
    Column("host", Text),
    Column("queued_at", Moment, nullable=False, server_default=func.clock_timestamp()),
    Column("started_at", Moment),
    Column("finished_at", Moment),
    Column("error", JSONB),
    # What the accepted attempt staged ({"folders": [path, …]}); and the fencing token of those who publish it.
    Column("outputs", JSONB),
    Column("publication", Integer, nullable=False, server_default=text("0")),
    # The archive with the code of its attempt; none where that is imported from where it lies.
    Column("code_sha256", Text),
    _lock_only(),
    _known_state(run_domain.MACHINE),
    _ended_exactly_when_terminal(run_domain.MACHINE, "finished_at"),
    CheckConstraint("state <> 'publishing' OR outputs IS NOT NULL", name="publishes_something"),
    CheckConstraint("interval_start < interval_end", name="interval_not_empty"),
    CheckConstraint("slot >= 1 AND pipeline_slot >= 1", name="slots_from_one"),
    CheckConstraint(f"({_in('state', run_domain.LIVE)}) = (slot IS NOT NULL)", name="slot_while_live"),
    CheckConstraint(
        f"({_in('state', run_domain.LIVE)}) = (pipeline_slot IS NOT NULL)", name="pipeline_slot_while_live"
    ),
    CheckConstraint(f"({_in('state', run_domain.LIVE)}) = (lease_until IS NOT NULL)", name="lease_while_live"),
    # Limits hold (invariant 4): two live runs never hold the same slot, so there are no more of them than slots.
    Index("run_slot_key", "backfill_id", "slot", unique=True, postgresql_where=text("slot IS NOT NULL")),
    Index(
        "run_pipeline_slot_key",
        "pipeline_no",
        "pipeline_slot",
        unique=True,
        postgresql_where=text("pipeline_slot IS NOT NULL"),
    ),
    # No data interval ever has two live runs, or two that will be (invariant 3).
    Index(
        "run_interval_unfinished_key",
        "pipeline_no",
        "interval_start",
        unique=True,
        postgresql_where=text(_in("state", run_domain.UNFINISHED)),
    ),
    UniqueConstraint("backfill_id", "position"),
    # The next ones to claim.
    Index("run_queued_idx", "backfill_id", "position", postgresql_where=text("state = 'queued'")),
    # Whether one failed since the last resume.
    Index("run_failed_idx", "backfill_id", "finished_at", postgresql_where=text("state = 'failed'")),
    # The runtimes of a pipeline's last successes.
    Index("run_succeeded_idx", "pipeline_no", "finished_at", postgresql_where=text("state = 'succeeded'")),
    # The latest finished run of an interval decides on reprocessing.
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
    _known_state(task_run_domain.MACHINE),
    _ended_exactly_when_terminal(task_run_domain.MACHINE, "finished_at"),
)

deadline = Table(
    "deadline",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    # The partition of the id's text: its watcher.
    Column("shard", Integer, nullable=False),
    Column("alert", Text, nullable=False),
    Column("pipeline", Text, nullable=False),
    Column("backfill_id", Text, nullable=False),
    # None for a deadline of the whole backfill.
    Column("run_id", BigInteger, ForeignKey(run.c.id)),
    # The task that must be done, where it is not the run.
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
    # The digest that tells of its miss: the id of the deadline that opened it.
    Column("digest_id", BigInteger),
    Column("decided_at", Moment),
    # Missed, and done after all.
    Column("recovered_at", Moment),
    _known_state(deadline_domain.MACHINE),
    _ended_exactly_when_terminal(deadline_domain.MACHINE, "decided_at"),
    # One deadline for each alert of a run: one that counts from the first start is not armed again by a later attempt.
    UniqueConstraint("run_id", "alert"),
    CheckConstraint("recovered_at IS NULL OR state = 'missed'", name="recovered_after_a_miss"),
    Index("deadline_of_backfill_key", "backfill_id", "alert", unique=True, postgresql_where=text("run_id IS NULL")),
    # The next moments of a shard. With the id, as very many of a plan may be due at the same moment.
    Index("deadline_due_idx", "shard", "due_at", "id", postgresql_where=text("state = 'armed'")),
    Index(
        "deadline_armed_of_backfill_idx",
        "shard",
        "due_at",
        postgresql_where=text("state = 'armed' AND run_id IS NULL"),
    ),
    # The first misses of a digest, and how many there are.
    Index(
        "deadline_missed_in_digest_idx",
        "digest_id",
        "decided_at",
        "due_at",
        "id",
        postgresql_where=text("digest_id IS NOT NULL"),
    ),
)

# Misses of one alert that are collected into one event. Its id is that of the deadline that opened it, so its shard is
# the partition of its id too, and its callback is that deadline's.
deadline_digest = Table(
    "deadline_digest",
    metadata,
    Column("id", BigInteger, ForeignKey(deadline.c.id), primary_key=True),
    Column("shard", Integer, nullable=False),
    Column("pipeline", Text, nullable=False),
    Column("alert", Text, nullable=False),
    # What is called and for how long misses are collected: after an edit of the pipeline, old and new ones do not mix.
    Column("target", Text, nullable=False),
    Column("opened_at", Moment, nullable=False),
    Column("closes_at", Moment, nullable=False),
    Column("closed_at", Moment),
    # One window of an alert is open at a time, whichever watchers see the misses.
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

callback = Table(
    "callback",
    metadata,
    # One callback a deadline (invariant 10).
    Column("deadline_id", BigInteger, ForeignKey(deadline.c.id), primary_key=True),
    Column("shard", Integer, nullable=False),
    # The function's name, the webhook's address or the topic.
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False, server_default=text("'function'")),
    # secret: name of a webhook's secrets; at_most_once.
    Column("options", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("kwargs", JSONB, nullable=False),
    # The event that it is told: DeadlineMissed or DeadlinesMissed.
    Column("event", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    # Runners serve pipelines in turn.
    Column("pipeline", Text, nullable=False, server_default=text("''")),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    # Calls during which the runner died.
    Column("runners_lost", Integer, nullable=False, server_default=text("0")),
    # The claim of one runner (invariant 11): recorded under the token, alive until the lease ends.
    Column("token", Text),
    Column("lease_until", Moment),
    Column("next_try_at", Moment, nullable=False, server_default=func.clock_timestamp()),
    Column("last_error", Text),
    Column("finished_at", Moment),
    _known_state(callback_domain.MACHINE),
    _ended_exactly_when_terminal(callback_domain.MACHINE, "finished_at", callback_domain.ENDED),
    CheckConstraint("(state = 'running') = (token IS NOT NULL)", name="token_while_running"),
    CheckConstraint("(token IS NULL) = (lease_until IS NULL)", name="lease_with_token"),
    Index(
        "callback_pending_of_pipeline_idx",
        "shard",
        "pipeline",
        "next_try_at",
        postgresql_where=text("state = 'pending'"),
    ),
    Index("callback_running_idx", "shard", "lease_until", postgresql_where=text("state = 'running'")),
)


# Webhooks that answered 410 Gone: nothing is sent there until a replay is answered with success.
webhook_off = Table(
    "webhook_off",
    metadata,
    Column("url", Text, primary_key=True),
    Column("since", Moment, nullable=False, server_default=func.clock_timestamp()),
    Column("deadline_id", BigInteger, nullable=False),
)


class ServiceTables:
    """The bus tables of one service: its shards, their offsets, its outbox and its relay."""

    def __init__(self, package: str) -> None:
        self.shard = Table(
            f"{package}_shard",
            metadata,
            Column("partition", Integer, primary_key=True),
            # Counts the owners; every transaction of the shard names the one it believes in.
            Column("epoch", BigInteger, nullable=False, server_default=text("0")),
            Column("owner", Text),
            Column("taken_at", Moment),
            # The message that is tried alone since processes died here, and how many have died of it (bus/deaths.py).
            Column("trying_topic", Text),
            Column("trying_offset", BigInteger),
            Column("trying_deaths", SmallInteger),
        )
        self.offset = Table(
            f"{package}_shard_offset",
            metadata,
            Column("topic", Text, primary_key=True),
            Column("partition", Integer, primary_key=True),
            # Kafka's id of the topic: a recreated topic starts at 0.
            Column("topic_id", Text, nullable=False),
            Column("next_offset", BigInteger, nullable=False),
            # Where it stood when the shard was taken over last: if it still does, somebody may have died of what comes next.
            Column("taken_offset", BigInteger),
        )
        self.outbox = Table(
            f"{package}_outbox",
            metadata,
            Column("id", BigInteger, Identity(), primary_key=True),
            Column("topic", Text, nullable=False),
            Column("key", LargeBinary),
            Column("value", LargeBinary),
            Column("headers", JSONB, nullable=False),
            Column("created_at", Moment, nullable=False, server_default=func.clock_timestamp()),
        )
        # Dead letters that Kafka refuses too: kept until somebody deletes them, or puts them into the outbox again.
        self.refused = Table(
            f"{package}_outbox_refused",
            metadata,
            Column("id", BigInteger, primary_key=True, autoincrement=False),
            Column("topic", Text, nullable=False),
            Column("key", LargeBinary),
            Column("value", LargeBinary),
            Column("headers", JSONB, nullable=False),
            Column("created_at", Moment, nullable=False),
            Column("reason", Text, nullable=False),
            Column("refused_at", Moment, nullable=False, server_default=func.clock_timestamp()),
        )
        self.relay = Table(
            f"{package}_relay",
            metadata,
            Column("only", Boolean, primary_key=True, server_default=text("true")),
            Column("epoch", BigInteger, nullable=False, server_default=text("0")),
            # The last batch that was numbered, and the rows in it until they are known to be published.
            Column("batch", BigInteger, nullable=False, server_default=text("0")),
            Column("batch_ids", ARRAY(BigInteger), nullable=False, server_default=text("'{}'")),
            CheckConstraint('"only"', name="one_row"),
        )


SERVICE_TABLES = {
    package: ServiceTables(package)
    for package in ("backfill_planner", "run_starter", "deadline_watcher", "callback_runner")
}

# What was fixed at init: a partition count that differs later is refused.
installation = Table(
    "installation",
    metadata,
    Column("only", Boolean, primary_key=True, server_default=text("true")),
    Column("id", Text, nullable=False),
    Column("topic_prefix", Text, nullable=False),
    Column("partitions", Integer, nullable=False),
    # The Postgres that was last worked on (store/history.py); none where it does not say.
    Column("system_identifier", Text),
    Column("timeline", Integer),
    Column("created_at", Moment, nullable=False, server_default=func.clock_timestamp()),
    CheckConstraint('"only"', name="one_row"),
)
