"""What an owner knows of one shard: its epoch, what it has yet to handle, how far it has read, and what to look at."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

from retrofill.bus.envelope import Record
from retrofill.bus.inbox import End
from retrofill.bus.worker.deaths import Suspect

BATCH_BYTES = 8_000_000
_tickets = count(1)


class Ownership(Enum):
    """Where an instance stands with a shard."""

    PARTIAL = "partial"  # its first topic's partition is not assigned to us, whatever of the others is
    ASSIGNED = "assigned"  # it is: to be taken over in Postgres
    FENCED = "fenced"  # somebody took it: to be taken again only after the coordinator said that it is ours
    SEEKING = "seeking"  # taken; the poller is going to the offsets
    OWNED = "owned"
    STOPPED = "stopped"  # an offset is out of range: loud, and left to a person


@dataclass
class TopicQueue:
    """Messages of one topic's partition that wait to be handled."""

    next_offset: int = 0  # as in Postgres
    expected: int = 0  # behind what is queued: anything before it was read already
    items: deque[Record | End] = field(default_factory=deque)
    held_until: float = 0.0  # monotonic: nothing of this topic is handled before
    read_to: int = 0  # offset of the last end that was read with nothing before it unhandled


@dataclass
class Shard:
    """One shard. All times are monotonic seconds.

    Whoever is assigned the partition of its first topic owns it and reads the others too, whoever is assigned those.
    ``added``: a partition of one topic that is beyond those fixed at init.
    """

    partition: int
    topics: tuple[str, ...]
    ownership: Ownership = Ownership.PARTIAL
    added: bool = False
    epoch: int = -1
    ticket: int = 0  # of the last positioning that was asked for; no other shard has the same
    seek_again: bool = False  # it was refused
    queues: dict[str, TopicQueue] = field(default_factory=dict)
    checks: dict[str, float] = field(default_factory=dict)
    retry_at: float = 0.0
    failures: int = 0
    trouble: str | None = None  # why it stands still, or was refused last
    conflicts: int = 0
    conflicting_checks: dict[str, int] = field(default_factory=dict)  # by key: so often in a row
    alone: int = 0  # a batch was refused: so many messages are handled one by one, until the one is found
    careful: int = 0  # former owners died here: so many messages are written down before they are handled, one by one
    suspect: Suspect | None = None  # the message of which they died for certain
    trying: bool = False  # one is written down
    dirty: bool = False  # offsets moved that Kafka was not told of
    last_offsets: dict[str, int] = field(default_factory=dict)  # when it was fenced
    committed_at: float = 0.0
    ends_since: float | None = None  # when ends alone, without messages, began to wait to be recorded

    def lose(self, ownership: Ownership) -> list[Record]:
        """Forget all that an owner knows; returns the messages that will not be handled here."""
        dropped = [item for queue in self.queues.values() for item in queue.items if isinstance(item, Record)]
        self.ownership = ownership
        self.trouble = None
        self.queues = {}
        self.checks = {}
        self.conflicting_checks = {}
        self.failures = 0
        self.alone = 0
        self.conflicts = 0
        self.careful = 0
        self.suspect = None
        self.trying = False
        self.dirty = False
        self.ends_since = None
        self.ticket = next(_tickets)
        self.seek_again = False
        return dropped

    def begin(self, offsets: dict[str, int], epoch: int) -> None:
        """Taken over: these offsets are in Postgres."""
        self.epoch = epoch
        self.queues = {topic: TopicQueue(offset, expected=offset, read_to=-1) for topic, offset in offsets.items()}
        self.ownership = Ownership.SEEKING
        self.ticket = next(_tickets)
        self.seek_again = False

    @property
    def offsets(self) -> dict[str, int]:
        """By topic, as in Postgres."""
        return {topic: queue.next_offset for topic, queue in self.queues.items()}

    def add(self, item: Record | End) -> bool:
        """Queue an item; False where it is stale and was dropped."""
        queue = self.queues.get(item.topic)
        if self.ownership is not Ownership.OWNED or queue is None or item.offset < queue.expected:
            # The client may still give what it fetched before it went to the offset that Postgres has.
            return False
        queue.expected = item.offset + 1 if isinstance(item, Record) else item.offset
        queue.items.append(item)
        return True

    def batch(self, limit: int, now: float, most_bytes: int = BATCH_BYTES) -> Iterator[Record | End]:
        """The next items, topic by topic, ``limit`` messages at most; they stay queued until ``done``.

        Not more than ``most_bytes``, or one message.
        """
        taken = size = 0
        for queue in self.queues.values():
            if queue.held_until > now:
                continue
            for item in queue.items:
                if isinstance(item, Record):
                    if taken >= limit or (taken and size + item.size > most_bytes):
                        break
                    taken += 1
                    size += item.size
                yield item

    def has_messages(self, now: float) -> bool:
        """Whether there is a message that may be handled now."""
        return any(
            queue.held_until <= now and any(isinstance(item, Record) for item in queue.items)
            for queue in self.queues.values()
        )

    def has_ends(self, now: float) -> bool:
        """Whether there is anything at all to record."""
        return any(queue.held_until <= now and queue.items for queue in self.queues.values())

    def done(self, topic: str, upto: int, count: int) -> list[Record]:
        """The first ``count`` items of ``topic`` are handled and its offset is ``upto`` in Postgres."""
        queue = self.queues[topic]
        queue.next_offset = upto
        handled = []
        for _ in range(count):
            item = queue.items.popleft()
            if isinstance(item, End):
                queue.read_to = item.offset
            else:
                handled.append(item)
        return handled

    def due_checks(self, now: float) -> list[str]:
        """Keys to look at."""
        return [key for key, due in self.checks.items() if due <= now]

    def schedule_check(self, key: str, due: float) -> None:
        """Look at ``key`` at ``due`` or earlier."""
        self.checks[key] = min(due, self.checks.get(key, due))

    def next_due(self, flush_seconds: float) -> float | None:
        """When something of this shard is to be done next, beside what arrives."""
        if self.ownership in (Ownership.ASSIGNED, Ownership.FENCED) or self.seek_again:
            return self.retry_at
        if self.ownership is not Ownership.OWNED:
            return None
        now = time.monotonic()
        dues = list(self.checks.values())
        # A hold that is over is not due: what it held is, if that is a message.
        dues += [queue.held_until for queue in self.queues.values() if queue.items and queue.held_until > now]
        if self.ends_since is not None:
            dues.append(self.ends_since + flush_seconds)
        if self.has_messages(now):
            dues.append(0.0)
        if self.failures:
            return max(self.retry_at, min(dues, default=self.retry_at))
        return min(dues, default=None)
