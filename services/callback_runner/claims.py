"""A claimed callback, and the data that its receiver gets."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from retrofill_core.bus.envelope import ID_NAMESPACE


@dataclass(frozen=True)
class Claim:
    # The callback's id; without an occasion, its deadline's too.
    deadline_id: int
    shard: int
    # The function's name, the webhook's URL or the topic.
    name: str
    kind: str
    pipeline: str
    options: Mapping[str, Any]
    kwargs: dict[str, Any]
    # What happened, as published; empty in rows of an older release.
    event: dict[str, Any]
    attempt: int
    runners_lost: int
    token: str
    # Since when the URL answers 410 Gone; ``None`` for a replay, which tries again.
    off_since: datetime | None
    # What a pipeline lists it for; ``None`` for a deadline's.
    occasion: str | None = None
    backfill_id: str | None = None

    @property
    def at_most_once(self) -> bool:
        """Whether a call with an uncertain outcome must not be repeated."""
        return bool(self.options.get("at_most_once"))

    @property
    def replayed(self) -> bool:
        """Whether a user requested this call after the callback had failed."""
        return bool(self.options.get("replayed"))

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
        call = {**self._id, "idempotency_key": self.idempotency_key, "attempt": self.attempt}
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


def claim_of(row: Mapping[str, Any], shard: int) -> Claim:
    """A claim of a pending row, with a new token."""
    replayed = row["options"].get("replayed")
    return Claim(
        deadline_id=row["deadline_id"],
        shard=shard,
        name=row["name"],
        kind=row["kind"],
        pipeline=row["pipeline"],
        options=row["options"],
        kwargs=row["kwargs"],
        event=row["event"],
        attempt=row["attempts"] + 1,
        runners_lost=row["runners_lost"],
        token=uuid.uuid4().hex,
        off_since=None if replayed else row["off_since"],
        occasion=row["occasion"],
        backfill_id=row["backfill_id"],
    )
