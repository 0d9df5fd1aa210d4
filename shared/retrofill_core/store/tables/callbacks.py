"""Tables of callbacks, of the failed runs that they are about, and of receivers that are down or want no more."""

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

from retrofill_core.domain.callback import ENDED
from retrofill_core.domain.callback import MACHINE as CALLBACK
from retrofill_core.domain.deadline import MACHINE as DEADLINE
from retrofill_core.store.tables.backfills import (
    Moment,
    backfill,
    ended_exactly_when_terminal,
    known_state,
    lock_only,
    metadata,
)
from retrofill_core.store.tables.runs import run

callback = Table(
    "callback",
    metadata,
    # The callback's id. One callback per deadline (invariant 10): it has its deadline's id. Those of
    # runs and backfills draw theirs from the same sequence.
    Column("deadline_id", BigInteger, primary_key=True),
    Column("shard", Integer, nullable=False),
    # The function's name, receiver:NAME or the address of a webhook, or the topic.
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False, server_default=text("'function'")),
    # Keys: secret (name of a webhook's secrets), body, routing_key, at_most_once, replayed.
    Column("options", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("kwargs", JSONB, nullable=False),
    # The event it is called with. Empty while it collects failures.
    Column("event", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    # Runners serve the pipelines of a shard in turn.
    Column("pipeline", Text, nullable=False, server_default=text("''")),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    # Calls during which the runner died.
    Column("runners_lost", Integer, nullable=False, server_default=text("0")),
    # The claim of one runner (invariant 11): the result is recorded under the token.
    Column("token", Text),
    Column("lease_until", Moment),
    Column("next_try_at", Moment, nullable=False, server_default=func.clock_timestamp()),
    Column("last_error", Text),
    Column("finished_at", Moment),
    # Null for a callback of a deadline: the backfill, what it is called for, and its place in that
    # list of the pipeline.
    Column("backfill_id", Text, ForeignKey(backfill.c.id)),
    Column("occasion", Text),
    Column("place", Integer),
    # Callbacks of one receiver about one backfill, which are called in the order of their facts. Null: alone.
    Column("order_key", Text),
    Column("made_at", Moment, nullable=False, server_default=func.clock_timestamp()),
    # When it was first to be called, or called again by a replay: patience with its receiver counts from here.
    Column("due_at", Moment, nullable=False, server_default=func.clock_timestamp()),
    # Whether further failed runs may join it, until it is first called.
    Column("collects", Boolean, nullable=False, server_default=text("false")),
    lock_only(),
    known_state(CALLBACK),
    ended_exactly_when_terminal(CALLBACK, "finished_at", ENDED),
    CheckConstraint("(state = 'running') = (token IS NOT NULL)", name="token_while_running"),
    CheckConstraint("(token IS NULL) = (lease_until IS NULL)", name="lease_with_token"),
    CheckConstraint("(backfill_id IS NULL) = (occasion IS NULL)", name="occasion_of_a_backfill"),
    CheckConstraint("(backfill_id IS NULL) = (place IS NULL)", name="place_in_a_list"),
    CheckConstraint("NOT collects OR state = 'pending'", name="collects_until_called"),
    # A backfill ends once: one callback for each place of the list.
    Index(
        "callback_of_end_key", "backfill_id", "place", unique=True, postgresql_where=text("occasion <> 'run_failed'")
    ),
    # Those of a backfill, for purges, and the one that its failures join.
    Index(
        "callback_of_backfill_idx",
        "backfill_id",
        "collects",
        "place",
        postgresql_where=text("backfill_id IS NOT NULL"),
    ),
    Index(
        "callback_pending_of_pipeline_idx",
        "shard",
        "pipeline",
        "next_try_at",
        postgresql_where=text("state = 'pending'"),
    ),
    # What waits for a receiver that is down.
    Index(
        "callback_of_receiver_idx",
        "name",
        "shard",
        "next_try_at",
        postgresql_where=text("state = 'pending' AND kind <> 'function'"),
    ),
    # One call of an order key at a time, whatever two runners read.
    Index("callback_order_key", "order_key", unique=True, postgresql_where=text("state = 'running'")),
    Index("callback_in_order_idx", "order_key", "made_at", postgresql_where=text("order_key IS NOT NULL")),
    Index("callback_collecting_idx", "order_key", postgresql_where=text("collects")),
    Index("callback_running_idx", "shard", "lease_until", postgresql_where=text("state = 'running'")),
)

# The failed runs that a callback is about. The key is the promise: each failed run is in one
# callback for each place of its pipeline's list.
callback_run = Table(
    "callback_run",
    metadata,
    Column("run_id", BigInteger, ForeignKey(run.c.id), primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("callback_id", BigInteger, ForeignKey(callback.c.deadline_id), nullable=False),
    Index("callback_run_callback_idx", "callback_id", "run_id"),
)

# Webhooks and topics that did not take the last call. One callback probes such a receiver, and all others wait.
receiver = Table(
    "receiver",
    metadata,
    # As in callback: no webhook is named like a topic.
    Column("name", Text, primary_key=True),
    Column("down_since", Moment, nullable=False, server_default=func.clock_timestamp()),
    # Calls in a row that it did not take, those that began before it was known to be down counted once.
    Column("tries", Integer, nullable=False),
    Column("next_probe_at", Moment, nullable=False),
    # The last callback that probed. While that is running, no other does.
    Column("probe_id", BigInteger),
    Column("last_error", Text, nullable=False),
)

# Webhooks that replied 410 Gone: nothing is sent to that address until a replay succeeds.
webhook_off = Table(
    "webhook_off",
    metadata,
    # As in callback.
    Column("name", Text, primary_key=True),
    # A hash of the address: another one that the settings give the receiver is not switched off.
    Column("address", Text, nullable=False),
    Column("since", Moment, nullable=False, server_default=func.clock_timestamp()),
    Column("deadline_id", BigInteger, nullable=False),
)


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
    known_state(DEADLINE),
    ended_exactly_when_terminal(DEADLINE, "decided_at"),
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
