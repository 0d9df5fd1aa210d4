"""A claimed callback, and the data that its receiver gets."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from retrofill_core.bus.envelope import ID_NAMESPACE
from retrofill_core.store.callbacks import Claimed, Pending
from retrofill_core.store.receivers import Outage


@dataclass(frozen=True, kw_only=True)
class Claim(Claimed):
    """A callback that this runner calls."""

    shard: int
    kwargs: dict[str, Any]
    event: dict[str, Any]
    # Since when the URL answers 410 Gone; ``None`` for a replay, which tries again.
    off_since: datetime | None
    due_at: datetime
    # That for whose end it has waited long enough: it is given up.
    outage: Outage | None = None

    @property
    def idempotency_key(self) -> str:
        """The same for every try, so receivers can detect repeats."""
        return f"{self.deadline_id}:{self.name}"

    @property
    def event_type(self) -> str:
        return str(self.event.get("type", "DeadlineMissed"))

    @property
    def fields(self) -> dict[str, Any]:
        """The event with the callback's arguments."""
        return {**self._id, **self.event, "kwargs": self.kwargs}

    @property
    def context(self) -> dict[str, Any]:
        """The ``context`` argument of a function: the event's fields with those of this try."""
        call = {**self._id, "idempotency_key": self.idempotency_key, "attempt": self.attempts}
        return {**self.event, **call}

    @property
    def _id(self) -> dict[str, int]:
        return {"deadline_id" if self.occasion is None else "callback_id": self.deadline_id}

    @property
    def happened_at(self) -> datetime:
        """When the miss was decided, the digest was closed, or the backfill ended."""
        moments = (self.event.get(name) for name in ("detected_at", "closed_at", "ended_at"))
        text = next(filter(None, moments), None)
        return datetime.fromisoformat(text) if text else datetime.now(UTC)

    def message_id(self, installation: str) -> str:
        """The idempotency key as a webhook id, valid in headers and unique across installations."""
        return f"{self.deadline_id}-{uuid.uuid5(ID_NAMESPACE, f'{installation}:{self.idempotency_key}').hex}"


def claim_of(one: Pending, shard: int, outage: Outage | None = None) -> Claim:
    """A claim of a pending callback, with a new token."""
    return Claim(
        deadline_id=one.deadline_id,
        shard=shard,
        name=one.name,
        kind=one.kind,
        pipeline=one.pipeline,
        options=one.options,
        kwargs=one.kwargs,
        event=one.event,
        attempts=one.attempts + 1,
        runners_lost=one.runners_lost,
        token=uuid.uuid4().hex,
        off_since=None if one.replayed else one.off_since,
        occasion=one.occasion,
        backfill_id=one.backfill_id,
        due_at=one.due_at,
        outage=outage,
    )
