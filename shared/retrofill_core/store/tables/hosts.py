"""The tables of hosts and their seats: where attempts may be executed.

A run-starter is one host for each pool that it serves.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    func,
    text,
)

from retrofill_core.store.tables.attempts import attempt
from retrofill_core.store.tables.base import Moment, metadata

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
