"""The schema and its metadata, constraints and columns that several tables share, and the tables of pipelines and backfills."""

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
    MetaData,
    SmallInteger,
    Table,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TSTZMULTIRANGE, TSTZRANGE, ExcludeConstraint

from retrofill.states import Machine
from retrofill_core.domain.backfill import ACTIVE, MACHINE

SCHEMA = "retrofill"
# The newest migration, which creates these tables, and the oldest schema this release works with.
REVISION = "0001"
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


def is_in(column: str, states: tuple[str, ...] | frozenset[str]) -> str:
    """An SQL condition: ``column`` is one of ``states``."""
    return f"{column} IN ({', '.join(repr(str(state)) for state in sorted(states))})"


def known_state(machine: Machine) -> CheckConstraint:
    return CheckConstraint(is_in("state", machine.states), name="state_known")


def ended_exactly_when_terminal(machine: Machine, column: str, ended: tuple[str, ...] | None = None) -> CheckConstraint:
    """``column`` is set exactly in the terminal states, or in those of ``ended``."""
    states = machine.terminal if ended is None else ended
    return CheckConstraint(f"({is_in('state', states)}) = ({column} IS NOT NULL)", name=f"{column}_when_terminal")


def lock_only() -> Column[int | None]:
    """A column that is never written: the grant to update it is the right to lock the row."""
    return Column("lock_only", SmallInteger)


pipeline = Table(
    "pipeline",
    metadata,
    Column("name", Text, primary_key=True),
    # A number, so that an exclusion constraint can use it as a range without btree_gist.
    Column("no", BigInteger, Identity(always=True), nullable=False, unique=True),
    Column("definition", JSONB, nullable=False),
    Column("definition_hash", Text, nullable=False),
    Column("max_active_runs", Integer, nullable=False),
    Column("applied_at", Moment, nullable=False, server_default=func.clock_timestamp()),
    Column("removed_at", Moment),
    lock_only(),
)

# Messages on pipelines that were applied on a wrong partition and republished: the copy is not
# applied.
pipeline_copy = Table(
    "pipeline_copy",
    metadata,
    Column("ce_id", Text, primary_key=True),
    Column("value_hash", Text, nullable=False),
    Column("applied_at", Moment, nullable=False, server_default=func.clock_timestamp()),
)


# A pipeline is there from when its first output for the table is accepted. The rows are those of its intervals.
table_place = Table(
    "table_place",
    metadata,
    # What the format says the table is, whatever its name.
    Column("identity", Text, primary_key=True),
    Column("pipeline_no", BigInteger, ForeignKey(pipeline.c.no), primary_key=True),
    # The columns that tell to which interval a row belongs.
    Column("key_columns", Text, nullable=False),
)


# The intervals of a backfill, which no other active one of the pipeline shares.
COVERED = "coalesce(covers_parts, tstzmultirange(covers))"

backfill = Table(
    "backfill",
    metadata,
    Column("id", Text, primary_key=True),
    Column("pipeline_no", BigInteger, ForeignKey(pipeline.c.no), nullable=False),
    Column("pipeline", Text, nullable=False),
    Column("shard", Integer, nullable=False),
    Column("state", Text, nullable=False),
    # From the start of the first interval to the end of the last.
    Column("covers", TSTZRANGE, nullable=False),
    # If it has gaps, because the request named dates: the intervals without them.
    Column("covers_parts", TSTZMULTIRANGE),
    Column("runs", Integer, nullable=False),
    Column("max_active_runs", Integer, nullable=False),
    # The most runs of an attempt, if less than the pipeline's.
    Column("batch_size", Integer),
    Column("reprocess_behavior", Text, nullable=False),
    Column("run_backwards", Boolean, nullable=False),
    Column("on_run_failure", Text, nullable=False),
    Column("conf", JSONB, nullable=False),
    Column("triggered_by", Text),
    # The pipeline as planned: later edits affect later backfills only.
    Column("definition", JSONB, nullable=False),
    # Whether runs use the code applied last when they start, not that of the definition.
    Column("code_follows", Boolean, nullable=False, server_default=text("false")),
    Column("requested_at", Moment, nullable=False, server_default=func.clock_timestamp()),
    Column("resumed_at", Moment),
    # Failed runs that the last resume or change accepted; more than that means one has failed since.
    Column("failed_before", Integer, nullable=False, server_default=text("0")),
    # Whether staged output waits for a review, when the last one began in which no run had failed,
    # when and how often it was approved, and whether the last approval was for any state of the outputs.
    Column("review", Boolean, nullable=False, server_default=text("false")),
    Column("staged_at", Moment),
    Column("approved_at", Moment),
    Column("approvals", Integer, nullable=False, server_default=text("0")),
    Column("forced", Boolean, nullable=False, server_default=text("false")),
    # The backfill whose output its runs undo.
    Column("undoes", Text),
    # Trace context of the plan, the parent of the spans of its runs.
    Column("traceparent", Text),
    Column("cancel_cause", Text),
    Column("ended_at", Moment),
    # What it may use before it pauses: runs that fail, hours of cores, and time. Null: no limit.
    Column("budget_failed_runs", Integer),
    Column("budget_core_hours", Double),
    Column("budget_until", Moment),
    # When the purge began that deleted everything deletable of it.
    Column("purged_at", Moment),
    lock_only(),
    known_state(MACHINE),
    ended_exactly_when_terminal(MACHINE, "ended_at"),
    CheckConstraint("runs > 0", name="runs_exist"),
    CheckConstraint("NOT isempty(covers)", name="covers_something"),
    CheckConstraint("state <> 'cancelling' OR cancel_cause IS NOT NULL", name="cancel_has_a_cause"),
    # No overlap (invariant 3): however many planners race, the second of two overlapping
    # active backfills cannot be inserted.
    ExcludeConstraint(
        (text("int8range(pipeline_no, pipeline_no, '[]')"), "&&"),
        (text(COVERED), "&&"),
        where=text(is_in("state", ACTIVE)),
        using="gist",
        name="backfill_no_overlap",
    ),
    # All active backfills of a shard, for a takeover.
    Index("backfill_active_idx", "shard", postgresql_where=text(is_in("state", ACTIVE))),
    # Claimants of a free slot of a pipeline, in the order they were requested.
    Index(
        "backfill_active_of_pipeline_idx",
        "pipeline_no",
        "shard",
        "requested_at",
        postgresql_where=text(is_in("state", ACTIVE)),
    ),
    Index("backfill_pipeline_idx", "pipeline", "requested_at"),
    Index("backfill_requested_idx", "requested_at"),
    # Backfills a purge has not finished, in the order of their ends.
    Index(
        "backfill_to_purge_idx", "ended_at", "id", postgresql_where=text("ended_at IS NOT NULL AND purged_at IS NULL")
    ),
    # Time of the last purge, and purged backfills that overlap a later one.
    Index("backfill_purged_at_idx", "purged_at", postgresql_where=text("purged_at IS NOT NULL")),
    Index(
        "backfill_purged_idx",
        text("int8range(pipeline_no, pipeline_no, '[]')"),
        "covers",
        postgresql_using="gist",
        postgresql_where=text("purged_at IS NOT NULL"),
    ),
)

# The last progress that was announced: a table of its own, so that nothing waits for the backfill's row.
backfill_progress = Table(
    "backfill_progress",
    metadata,
    Column("backfill_id", Text, ForeignKey(backfill.c.id), primary_key=True),
    # Rises by one with each event.
    Column("sequence", Integer, nullable=False),
    # Number of runs by state.
    Column("runs", JSONB, nullable=False),
)

# One id, one outcome (invariant 2): the primary key refuses a second one.
backfill_request = Table(
    "backfill_request",
    metadata,
    Column("id", Text, primary_key=True),
    Column("body_hash", Text, nullable=False),
    Column("answer_type", Text, nullable=False),
    Column("answer", JSONB, nullable=False),
    Column("decided_at", Moment, nullable=False, server_default=func.clock_timestamp()),
)

# Commands are distinguished by ce_id: a repeat gets the recorded reply.
backfill_command = Table(
    "backfill_command",
    metadata,
    Column("backfill_id", Text, primary_key=True),
    Column("ce_id", Text, primary_key=True),
    Column("answer_type", Text, nullable=False),
    Column("answer", JSONB, nullable=False),
    Column("decided_at", Moment, nullable=False, server_default=func.clock_timestamp()),
)
