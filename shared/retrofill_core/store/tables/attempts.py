"""The tables of attempts, of the hosts and seats of their drivers, and of what they wait for and write.

A run-starter is one host for each pool that it serves.
"""

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
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from retrofill.states import ATTEMPT_MACHINE, LIVE, AttemptMode, AttemptOutcome
from retrofill_core.store.tables.backfills import (
    Moment,
    backfill,
    ended_exactly_when_terminal,
    is_in,
    known_state,
    metadata,
)

attempt = Table(
    "attempt",
    metadata,
    # Only increases: the fencing token of everything that the attempt does.
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("backfill_id", Text, ForeignKey(backfill.c.id), nullable=False),
    Column("pipeline_no", BigInteger, nullable=False),
    Column("mode", Text, nullable=False),
    # The runs it was given: so many from this position on. Adjacent runs have adjacent positions.
    Column("position", Integer, nullable=False),
    Column("runs", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("slot", Integer),
    Column("pipeline_slot", Integer),
    # Where its runs, suspects, are retried alone: the pool, whose drivers share a Spark server.
    Column("suspect_server", Text),
    Column("host", Text, nullable=False),
    # The incarnation of that name. Null: claimed by a release without hosts.
    Column("host_id", BigInteger),
    Column("lease_until", Moment),
    # Length of the lease, fixed at the claim, so that its driver and every owner of the shard use
    # the same number.
    Column("lease_seconds", Double, nullable=False),
    Column("cancel_requested", Boolean, nullable=False, server_default=text("false")),
    # Its driver is to be ended for the sake of some of its runs; the others are queued again.
    Column("release_requested", Boolean, nullable=False, server_default=text("false")),
    # Where its code is (``CodeLocation``): with the backfill's row, the complete launch.
    Column("code", JSONB, nullable=False),
    Column("claimed_at", Moment, nullable=False, server_default=func.clock_timestamp()),
    Column("began_at", Moment),
    Column("ended_at", Moment),
    Column("outcome", Text),
    # The Spark application that it used and the address of its UI, as far as Spark tells.
    Column("spark_app_id", Text),
    Column("spark_ui", Text),
    # Why it was lost or released.
    Column("error", JSONB),
    # What Spark used for it. Null: Spark did not tell.
    Column("core_seconds", Double),
    Column("shuffle_bytes", BigInteger),
    Column("rows_read", BigInteger),
    Column("rows_written", BigInteger),
    known_state(ATTEMPT_MACHINE),
    ended_exactly_when_terminal(ATTEMPT_MACHINE, "ended_at"),
    CheckConstraint("(state = 'ended') = (outcome IS NOT NULL)", name="outcome_when_ended"),
    CheckConstraint(f"outcome IS NULL OR {is_in('outcome', tuple(AttemptOutcome))}", name="outcome_known"),
    CheckConstraint(is_in("mode", tuple(AttemptMode)), name="mode_known"),
    CheckConstraint("runs > 0", name="has_runs"),
    CheckConstraint("slot >= 1 AND pipeline_slot >= 1", name="slots_from_one"),
    CheckConstraint(f"({is_in('state', LIVE)}) = (slot IS NOT NULL)", name="slot_while_live"),
    CheckConstraint(f"({is_in('state', LIVE)}) = (pipeline_slot IS NOT NULL)", name="pipeline_slot_while_live"),
    CheckConstraint(f"({is_in('state', LIVE)}) = (lease_until IS NOT NULL)", name="lease_while_live"),
    # Limits hold (invariant 4): two live attempts never hold the same slot, so there are never more
    # live attempts than slots.
    Index("attempt_slot_key", "backfill_id", "slot", unique=True, postgresql_where=text("slot IS NOT NULL")),
    Index(
        "attempt_pipeline_slot_key",
        "pipeline_no",
        "pipeline_slot",
        unique=True,
        postgresql_where=text("pipeline_slot IS NOT NULL"),
    ),
    # At most one suspect at a time is on a server: what ends that server is then known.
    Index("attempt_suspect_server_key", "suspect_server", unique=True, postgresql_where=text("slot IS NOT NULL")),
    # When a backfill had its last turn to retry a suspect on a server, and when that server's last turn ended.
    Index("attempt_turn_idx", "backfill_id", "id", postgresql_where=text("suspect_server IS NOT NULL")),
    Index("attempt_turn_end_idx", "suspect_server", "ended_at", postgresql_where=text("suspect_server IS NOT NULL")),
    # The history of a run, and what a purge deletes.
    Index("attempt_backfill_idx", "backfill_id", "position"),
    # When a backfill was last given a seat.
    Index("attempt_newest_idx", "backfill_id", "id"),
    # How long a pipeline's last attempts took.
    Index(
        "attempt_ended_idx",
        "pipeline_no",
        "ended_at",
        postgresql_where=text("ended_at IS NOT NULL AND mode <> 'publish'"),
    ),
)


host = Table(
    "host",
    metadata,
    # An incarnation: a restarted run-starter is another host, even under the same name.
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("name", Text, nullable=False),
    # Only attempts of this pool get a seat here.
    Column("pool", Text, nullable=False, server_default=text("'default'")),
    Column("started_at", Moment, nullable=False, server_default=func.clock_timestamp()),
    # Nothing is given to a host whose lease is over.
    Column("lease_until", Moment, nullable=False),
    # Whether spark-submit may be started here. False for a pause after starts that failed.
    Column("submits", Boolean, nullable=False),
    # Why its drivers do not start.
    Column("note", Text),
    # URL of the logs of its attempts. Only who reads it here knows it: its path is a secret.
    Column("logs", Text),
    # Versions in its drivers: of Python, and of Spark as far as they know. For people.
    Column("python", Text),
    Column("spark", Text),
)

# One row per driver that a host can have.
seat = Table(
    "seat",
    metadata,
    Column("host_id", BigInteger, ForeignKey(host.c.id), primary_key=True),
    Column("no", Integer, primary_key=True),
    # Whether a driver process for it has reached Spark. Only the host sets it.
    Column("warm", Boolean, nullable=False),
    Column("attempt_id", BigInteger, ForeignKey(attempt.c.id)),
    # When the host took the attempt over. From then on its driver may begin.
    Column("acknowledged_at", Moment),
    CheckConstraint("acknowledged_at IS NULL OR attempt_id IS NOT NULL", name="acknowledges_something"),
    # An attempt has at most one seat.
    Index("seat_attempt_key", "attempt_id", unique=True, postgresql_where=text("attempt_id IS NOT NULL")),
)

# What an attempt writes without staging it (``Pipeline(writes=…)``). Its lock is free once the attempt is not live.
write_lock = Table(
    "write_lock",
    metadata,
    Column("name", Text, primary_key=True),
    # Its last writer, which a purge may have deleted.
    Column("attempt_id", BigInteger, nullable=False),
)

# A backfill that waits for such a lock: others that were served later leave it to this one.
write_wait = Table(
    "write_wait",
    metadata,
    Column("name", Text, primary_key=True),
    Column("backfill_id", Text, primary_key=True),
    Column("since", Moment, nullable=False),
    # It renews that. Past this moment it no longer counts.
    Column("until", Moment, nullable=False),
)

# A shard in which a backfill waits for a seat of a pool: others leave it one, and batches give it theirs.
seat_wait = Table(
    "seat_wait",
    metadata,
    Column("shard", Integer, primary_key=True),
    Column("pool", Text, primary_key=True, server_default=text("'default'")),
    # Whether it needs a seat for spark-submit.
    Column("submits", Boolean, primary_key=True, server_default=text("false")),
    # Of the first such backfill: its live attempts, and since when it waits (``Rank``).
    Column("live", Integer, nullable=False),
    Column("since", Moment, nullable=False, server_default=func.clock_timestamp()),
    # The owner renews it. Past this moment it no longer counts.
    Column("until", Moment, nullable=False),
)
