"""An owner's state of one shard: epoch, queued messages, offsets, and scheduled checks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import count, islice

from retrofill_core.bus.envelope import Record
from retrofill_core.bus.inbox import End
from retrofill_core.bus.takeover import Suspect

BATCH_BYTES = 8_000_000
_tickets = count(1)


class Ownership(Enum):
    """The steps of an instance towards owning a shard, and away from it."""

    PARTIAL = "partial"  # the first topic's partition is not assigned to us; others may be
    ASSIGNED = "assigned"  # it is; to be taken over in Postgres
    FENCED = "fenced"  # has a newer owner; taken over again only once the coordinator accepts a commit
    SEEKING = "seeking"  # taken over; the poller is moving to the offsets
    OWNED = "owned"
    STOPPED = "stopped"  # an offset is out of range; an operator must fix it


@dataclass
class TopicQueue:
    """Queued messages of one topic's partition."""

    next_offset: int = 0  # as in Postgres
    expected: int = 0  # the next offset to queue; anything before it is stale
    items: deque[Record | End] = field(default_factory=deque)
    held_until: float = 0.0  # monotonic; nothing of this topic is handled before
    refused: int = 0  # tries in a row in which the first message needed a locked row
    problem: str | None = None  # the last of them
    read_to: int = 0  # offset of the last end with everything before it handled

    def records(self, most: int) -> int:
        """The number of queued messages, of at most so many items."""
        return sum(isinstance(item, Record) for item in islice(self.items, most))

    def hold(self, until: float) -> None:
        """Handle nothing before ``until``. The first message was not tried, or needs no locked row."""
        self.held_until, self.refused, self.problem = until, 0, None

    def refuse(self, until: float, problem: str) -> None:
        """Try the first message again at ``until``: it needed a locked row."""
        self.held_until, self.refused, self.problem = until, self.refused + 1, problem

    @property
    def waiting_key(self) -> str | None:
        """The key of the first message if it needed a locked row."""
        first = next((item for item in self.items if isinstance(item, Record)), None) if self.refused else None
        return first.key.decode(errors="replace") if first is not None and first.key else None


@dataclass
class Shard:
    """One shard. All times are monotonic seconds.

    The instance that is assigned the partition of its first topic owns it, and reads the other
    topics too, regardless of their assignment. ``added``: an added partition of a single topic.
    """

    partition: int
    topics: tuple[str, ...]
    ownership: Ownership = Ownership.PARTIAL
    added: bool = False
    epoch: int = -1
    ticket: int = 0  # identifies the last requested positioning; unique across shards
    seek_again: bool = False  # that positioning was refused
    queues: dict[str, TopicQueue] = field(default_factory=dict)
    checks: dict[str, float] = field(default_factory=dict)
    retry_at: float = 0.0
    failures: int = 0
    problem: str | None = None  # the last failure, or why the shard is stopped
    conflicts: int = 0
    conflicting_checks: dict[str, int] = field(default_factory=dict)  # conflicts in a row, by key
    alone: int = 0  # messages still to handle one by one, to find the one at fault in a refused batch
    careful: int = 0  # messages still to record, one by one, before handling: former owners died here
    suspect: Suspect | None = None  # the message that the last owner was trying when it died
    others_first: bool = False  # a locked row cost the last try a second: now those that wait for none
    trying: bool = False  # Postgres records a message as being tried
    dirty: bool = False  # offsets moved since the last commit to Kafka
    last_offsets: dict[str, int] = field(default_factory=dict)  # at the time of the fence
    committed_at: float = 0.0
    ends_since: float | None = None  # when ends without messages began to wait

    def lose(self, ownership: Ownership) -> list[Record]:
        """Drop the owner's state; returns the queued messages, which will not be handled here."""
        dropped = [item for queue in self.queues.values() for item in queue.items if isinstance(item, Record)]
        self.ownership = ownership
        self.problem = None
        self.queues = {}
        self.checks = {}
        self.conflicting_checks = {}
        self.failures = 0
        self.alone = 0
        self.conflicts = 0
        self.careful = 0
        self.suspect = None
        self.others_first = False
        self.trying = False
        self.dirty = False
        self.ends_since = None
        self.ticket = next(_tickets)
        self.seek_again = False
        return dropped

    def begin(self, offsets: dict[str, int], epoch: int) -> None:
        """Start from a takeover: ``offsets`` by topic, as in Postgres."""
        self.epoch = epoch
        self.queues = {topic: TopicQueue(offset, expected=offset, read_to=-1) for topic, offset in offsets.items()}
        self.ownership = Ownership.SEEKING
        self.ticket = next(_tickets)
        self.seek_again = False

    @property
    def offsets(self) -> dict[str, int]:
        """Next offsets by topic, as in Postgres."""
        return {topic: queue.next_offset for topic, queue in self.queues.items()}

    def add(self, item: Record | End) -> bool:
        """Queue an item; returns False if it is stale and was dropped."""
        queue = self.queues.get(item.topic)
        if self.ownership is not Ownership.OWNED or queue is None or item.offset < queue.expected:
            # The client may still deliver messages fetched before it was repositioned.
            return False
        queue.expected = item.offset + 1 if isinstance(item, Record) else item.offset
        queue.items.append(item)
        return True

    def batch(self, limit: int, now: float, max_bytes: int = BATCH_BYTES) -> Iterator[Record | End]:
        """The next items, topic by topic; they stay queued until ``done``.

        At most ``limit`` messages and ``max_bytes``, but at least one message. Each topic has its share of both, and what the
        others leave: hundreds of waiting requests keep no report waiting.
        """
        queues = self._open(now)
        limit = 1 if any(queue.refused for queue in queues) else limit
        waiting = [queue.records(limit) for queue in queues]
        busy = max(1, sum(map(bool, waiting)))
        share, taken, size = limit // busy, 0, 0
        for number, queue in enumerate(queues):
            others = waiting[number + 1 :]
            room = limit - sum(min(share, each) for each in others)
            most_bytes = max_bytes * (busy - sum(map(bool, others))) // busy
            for item in queue.items:
                if isinstance(item, Record):
                    if taken >= room or (taken and size + item.size > most_bytes):
                        break
                    taken += 1
                    size += item.size
                yield item

    def _open(self, now: float) -> list[TopicQueue]:
        """The queues that are not held.

        One whose first message needed a locked row is tried without the others, and in turn with them: each
        of its tries may take a second.
        """
        queues = [queue for queue in self.queues.values() if queue.held_until <= now]
        refused = [queue for queue in queues if queue.refused]
        others = [queue for queue in queues if not queue.refused]
        if refused and not (self.others_first and any(isinstance(item, Record) for q in others for item in q.items)):
            return refused[:1]
        return others

    def has_messages(self, now: float) -> bool:
        """Whether a message may be handled now."""
        return any(
            queue.held_until <= now and any(isinstance(item, Record) for item in queue.items)
            for queue in self.queues.values()
        )

    def has_ends(self, now: float) -> bool:
        """Whether anything, message or end, may be recorded now."""
        return any(queue.held_until <= now and queue.items for queue in self.queues.values())

    def done(self, topic: str, upto: int, count: int) -> list[Record]:
        """Remove ``count`` items, handled up to ``upto`` in Postgres; returns their messages."""
        queue = self.queues[topic]
        queue.next_offset = upto
        handled = []
        for _ in range(count):
            item = queue.items.popleft()
            if isinstance(item, End):
                queue.read_to = item.offset
            else:
                handled.append(item)
                queue.refused, queue.problem = 0, None
                self.others_first = False
        return handled

    def waiting(self, tries: int) -> list[str]:
        """One line on each topic whose first message needed a locked row ``tries`` times in a row or more."""
        return [f"{topic}: {queue.problem}" for topic, queue in list(self.queues.items()) if queue.refused >= tries]

    def due_checks(self, now: float) -> list[str]:
        """Keys to check now. A check does not overtake a message of its key that waits for a locked row."""
        return [key for key, due in self._free_checks() if due <= now]

    def _free_checks(self) -> list[tuple[str, float]]:
        waiting = {queue.waiting_key for queue in self.queues.values()}
        return [(key, due) for key, due in self.checks.items() if key not in waiting]

    def schedule_check(self, key: str, due: float) -> None:
        """Check ``key`` at ``due``, or earlier if it is already scheduled."""
        self.checks[key] = min(due, self.checks.get(key, due))

    def next_due(self, flush_seconds: float) -> float | None:
        """When this shard next has work, apart from new arrivals; ``None``: never."""
        if self.ownership in (Ownership.ASSIGNED, Ownership.FENCED) or self.seek_again:
            return self.retry_at
        if self.ownership is not Ownership.OWNED:
            return None
        now = time.monotonic()
        dues = [due for _, due in self._free_checks()]
        # An expired hold is not itself due; its messages are (below).
        dues += [queue.held_until for queue in self.queues.values() if queue.items and queue.held_until > now]
        if self.ends_since is not None and self.has_ends(now):
            dues.append(self.ends_since + flush_seconds)
        if self.has_messages(now):
            dues.append(0.0)
        if self.failures:
            return max(self.retry_at, min(dues, default=self.retry_at))
        return min(dues, default=None)
