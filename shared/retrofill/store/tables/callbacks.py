"""Tables of callbacks, and of webhooks that are switched off."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKey, Index, Integer, Table, Text, func, text
from sqlalchemy.dialects.postgresql import JSONB

from retrofill.domain.callback import ENDED, MACHINE
from retrofill.store.tables.base import Moment, ended_exactly_when_terminal, known_state, metadata
from retrofill.store.tables.deadlines import deadline

callback = Table(
    "callback",
    metadata,
    # One callback per deadline (invariant 10).
    Column("deadline_id", BigInteger, ForeignKey(deadline.c.id), primary_key=True),
    Column("shard", Integer, nullable=False),
    # The function's name, the webhook's address or the topic.
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False, server_default=text("'function'")),
    # Keys: secret (name of a webhook's secrets), at_most_once, replayed.
    Column("options", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("kwargs", JSONB, nullable=False),
    # The event it is called with: DeadlineMissed or DeadlinesMissed.
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
    known_state(MACHINE),
    ended_exactly_when_terminal(MACHINE, "finished_at", ENDED),
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


# Webhooks that replied 410 Gone: nothing is sent there until a replay succeeds.
webhook_off = Table(
    "webhook_off",
    metadata,
    Column("url", Text, primary_key=True),
    Column("since", Moment, nullable=False, server_default=func.clock_timestamp()),
    Column("deadline_id", BigInteger, nullable=False),
)
