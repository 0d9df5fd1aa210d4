"""The tables of the bus: each service's shards, offsets, outbox and relay, and the installation."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Identity,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from retrofill_core.store.tables.backfills import Moment, metadata


class ServiceTables:
    """The bus tables of one service: its shards, their offsets, its outbox and its relay."""

    def __init__(self, package: str) -> None:
        self.shard = _shard(package)
        self.offset = _offset(package)
        self.outbox = _outbox(package)
        self.refused = _refused(package)
        self.relay = _relay(package)


def _shard(package: str) -> Table:
    return Table(
        f"{package}_shard",
        metadata,
        Column("partition", Integer, primary_key=True),
        # The fencing token: every transaction of the shard asserts the epoch of its owner.
        Column("epoch", BigInteger, nullable=False, server_default=text("0")),
        Column("owner", Text),
        Column("taken_at", Moment),
        # The message handled alone since processes died here, and how many died
        # (bus/takeover.py).
        Column("trying_topic", Text),
        Column("trying_offset", BigInteger),
        Column("trying_deaths", SmallInteger),
    )


def _offset(package: str) -> Table:
    return Table(
        f"{package}_shard_offset",
        metadata,
        Column("topic", Text, primary_key=True),
        Column("partition", Integer, primary_key=True),
        # Kafka's id of the topic: a recreated topic starts at 0.
        Column("topic_id", Text, nullable=False),
        Column("next_offset", BigInteger, nullable=False),
        # next_offset at the last takeover. If it has not moved since, the next message may have
        # killed an owner.
        Column("taken_offset", BigInteger),
        # Of an added partition, which has no row in the shard table: the same as there.
        Column("trying_offset", BigInteger),
        Column("trying_deaths", SmallInteger),
    )


def _outbox(package: str) -> Table:
    return Table(
        f"{package}_outbox",
        metadata,
        Column("id", BigInteger, Identity(), primary_key=True),
        Column("topic", Text, nullable=False),
        Column("key", LargeBinary),
        Column("value", LargeBinary),
        Column("headers", JSONB, nullable=False),
        Column("created_at", Moment, nullable=False, server_default=func.clock_timestamp()),
    )


def _refused(package: str) -> Table:
    """Dead letters that Kafka refused too, kept until an operator deletes or requeues them."""
    return Table(
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


def _relay(package: str) -> Table:
    return Table(
        f"{package}_relay",
        metadata,
        Column("only", Boolean, primary_key=True, server_default=text("true")),
        Column("epoch", BigInteger, nullable=False, server_default=text("0")),
        # The last numbered batch, and its rows until they are known to be published.
        Column("batch", BigInteger, nullable=False, server_default=text("0")),
        Column("batch_ids", ARRAY(BigInteger), nullable=False, server_default=text("'{}'")),
        # Which of the transactional ids the relay publishes with, and the last epoch that was taken by
        # a release that knows of it. An older one cannot take over while another id than the first is used.
        Column("transactional", SmallInteger, nullable=False, server_default=text("0")),
        Column("taken_epoch", BigInteger, nullable=False, server_default=text("0")),
        CheckConstraint('"only"', name="one_row"),
        CheckConstraint("transactional = 0 OR taken_epoch = epoch", name="older_releases_wait"),
    )


SERVICE_TABLES = {
    package: ServiceTables(package)
    for package in ("backfill_planner", "run_starter", "deadline_watcher", "callback_runner")
}

# Fixed at init; a partition count that differs later is refused.
installation = Table(
    "installation",
    metadata,
    Column("only", Boolean, primary_key=True, server_default=text("true")),
    Column("id", Text, nullable=False),
    Column("topic_prefix", Text, nullable=False),
    Column("partitions", Integer, nullable=False),
    # The Postgres last worked on (store/history.py); null where Postgres does not report it.
    Column("system_identifier", Text),
    Column("timeline", Integer),
    Column("created_at", Moment, nullable=False, server_default=func.clock_timestamp()),
    CheckConstraint('"only"', name="one_row"),
)
