"""What a runner knows of a callback that it claimed, and what the called are told."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from retrofill.bus.envelope import ID_NAMESPACE


@dataclass(frozen=True)
class Claim:
    """A callback that this runner claimed."""

    deadline_id: int
    shard: int
    # The function's name, the webhook's address or the topic.
    name: str
    kind: str
    pipeline: str
    options: Mapping[str, Any]
    kwargs: dict[str, Any]
    # DeadlineMissed or DeadlinesMissed, as published; empty in rows of an older version.
    event: dict[str, Any]
    attempt: int
    runners_lost: int
    token: str
    # Since when the address takes no calls; not for a replay, which finds out.
    off_since: datetime | None

    @property
    def at_most_once(self) -> bool:
        """Whether a call that may have been done is not made again."""
        return bool(self.options.get("at_most_once"))

    @property
    def replayed(self) -> bool:
        """Whether somebody asked for this call."""
        return bool(self.options.get("replayed"))

    @property
    def idempotency_key(self) -> str:
        """The same for every try, so that the called can tell that the work is done already."""
        return f"{self.deadline_id}:{self.name}"

    @property
    def event_type(self) -> str:
        """Name of the event's message type."""
        return str(self.event.get("type", "DeadlineMissed"))

    @property
    def fields(self) -> dict[str, Any]:
        """The event with the callback's arguments."""
        return {"deadline_id": self.deadline_id, **self.event, "kwargs": self.kwargs}

    @property
    def context(self) -> dict[str, Any]:
        """What a function may ask for."""
        call = {"deadline_id": self.deadline_id, "idempotency_key": self.idempotency_key, "attempt": self.attempt}
        return {**self.event, **call}

    @property
    def happened_at(self) -> datetime:
        """When the miss was decided, or the digest was closed."""
        text = self.event.get("detected_at") or self.event.get("closed_at")
        return datetime.fromisoformat(text) if text else datetime.now(UTC)

    def message_id(self, installation: str) -> str:
        """The idempotency key as an id that any header and Standard Webhooks take, and that no other installation has."""
        return f"{self.deadline_id}-{uuid.uuid5(ID_NAMESPACE, f'{installation}:{self.idempotency_key}').hex}"


def claim_of(row: Mapping[str, Any], shard: int) -> Claim:
    """The claim of a pending row."""
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
    )
