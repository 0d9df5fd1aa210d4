"""A fake ``confluent_kafka.Consumer``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, TopicPartition

from tests.simulation.bus.broker import Entry
from tests.simulation.bus.connections import Connections, refused
from tests.simulation.bus.groups import Group, Member, Place

END = KafkaError._PARTITION_EOF


@dataclass(frozen=True)
class FakeMessage:
    """A message, or the end of a partition."""

    place: Place
    at: int
    entry: Entry | None

    def error(self) -> KafkaError | None:
        """``None`` for a message."""
        return KafkaError(END) if self.entry is None else None

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        """The message's offset; at the end of a partition, the next offset."""
        return self.at

    def key(self) -> bytes | None:
        assert self.entry is not None
        return self.entry.key

    def value(self) -> bytes | None:
        assert self.entry is not None
        return self.entry.value

    def headers(self) -> list[tuple[str, bytes | None]]:
        assert self.entry is not None
        return self.entry.headers

    def timestamp(self) -> tuple[int, int]:
        """The broker's timestamp."""
        assert self.entry is not None
        return 1, self.entry.timestamp_ms


class FakeConsumer:
    """A consumer, with or without a group."""

    def __init__(self, connections: Connections, config: dict[str, Any]) -> None:
        self._c = connections
        self._broker = connections.broker
        self._committed = config.get("isolation.level", "read_committed") == "read_committed"
        self._group_id = str(config["group.id"])
        self._group: Group | None = None
        self._member: Member | None = None
        self._positions: dict[Place, int] = {}
        self._told_end: dict[Place, int] = {}
        self._paused: set[Place] = set()
        self._on_assign: Callable[..., None] | None = None
        self._on_revoke: Callable[..., None] | None = None
        self._wakes = object()
        self.waits = False
        connections.process.on_death.append(self._die)
        connections.add(self)

    # without a group

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._positions = {(p.topic, p.partition): p.offset for p in partitions}

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float = 0) -> tuple[int, int]:
        """The beginning, and the end at this reader's isolation level."""
        self._c.step("watermarks")
        return 0, self._broker.topics[partition.topic][partition.partition].end(committed=self._committed)

    # in a group

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        """Be a member."""
        self._group = self._broker.groups[self._group_id]
        self._on_assign, self._on_revoke = on_assign, on_revoke
        self._join()

    def _join(self) -> None:
        assert self._group is not None
        self._member = Member(self._c.process.name, self._wakes)
        self._group.join(self._member)
        self._broker.woken()

    def _die(self) -> None:
        """Leave the group after the process died.

        The coordinator notices after a while; it makes no difference whether the sockets were
        closed.
        """
        group, member = self._group, self._member
        if group is not None and member is not None:
            scheduler, broker = self._c.scheduler, self._broker

            def gone() -> None:
                group.leave(member)
                broker.woken()

            scheduler.at(scheduler.now + scheduler.random.random() * 6.0, gone)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Start reading these partitions."""
        for p in partitions:
            place = (p.topic, p.partition)
            if place in self._positions:
                raise refused(KafkaError._CONFLICT)
            self._positions[place] = max(0, p.offset)
            self._told_end.pop(place, None)
            self._paused.discard(place)

    def assignment(self) -> list[TopicPartition]:
        """Partitions being read, whether assigned by the group or manually."""
        return [TopicPartition(*place) for place in self._positions]

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Stop reading these partitions. Raises if one was not assigned."""
        for p in partitions:
            if (p.topic, p.partition) not in self._positions:
                raise refused(KafkaError._STATE)
        for p in partitions:
            del self._positions[p.topic, p.partition]

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._paused |= {(p.topic, p.partition) for p in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self._paused -= {(p.topic, p.partition) for p in partitions}

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition] | None:
        """Commit offsets to Kafka. Raises if the coordinator no longer knows this member."""
        self._c.step("kafka commit")
        member, group = self._member, self._group
        assert group is not None
        if member is None or member.expelled:
            if asynchronous:
                return None
            raise refused(KafkaError.UNKNOWN_MEMBER_ID)
        for p in offsets:
            group.offsets[p.topic, p.partition] = p.offset
        return offsets

    # polling

    def poll(self, timeout: float) -> FakeMessage | None:
        """The next message or end of partition, after any rebalance; ``None`` if there is none."""
        self._c.scheduler.step("poll")
        self._broker.expire()
        if self._c.cut:
            self._wait(timeout)
            return None
        if self._member is not None:
            self._reconcile()
        found = self._next()
        if found is None:
            # Longer than requested: any new work wakes it.
            self._wait(3.0)
        return found

    def _wait(self, seconds: float) -> None:
        self.waits = True
        self._c.scheduler.wait(self, seconds)
        self.waits = False

    def consume(self, count: int, timeout: float) -> list[FakeMessage]:
        """Up to ``count`` messages that are available now."""
        found: list[FakeMessage] = []
        while len(found) < count and self._c.scheduler.random.random() < 0.8 and (one := self._next()) is not None:
            found.append(one)
        return found

    def has_news(self) -> bool:
        """Whether a poll would return something."""
        member, group = self._member, self._group
        if member is not None and group is not None and not self._c.cut:
            wanted = group.wanted(member)
            if member.expelled or member.owned - wanted or any(group.free(place) for place in wanted - member.owned):
                return True
        return any(self._new(place, position) for place, position in self._positions.items())

    def _new(self, place: Place, position: int) -> bool:
        if place in self._paused:
            return False
        log = self._broker.topics[place[0]][place[1]]
        if position >= log.high_watermark and self._told_end.get(place) == position:
            return False
        if log.next(position, committed=self._committed) is not None:
            return True
        return self._told_end.get(place) != max(position, log.end(committed=self._committed))

    def _reconcile(self) -> None:
        group, member = self._group, self._member
        assert group is not None and member is not None and self._on_assign and self._on_revoke
        if member.expelled:
            lost, member.owned = sorted(member.owned), set()
            self._join()
            if lost:
                self._on_revoke(self, [TopicPartition(*place) for place in lost])
            return
        wanted = group.wanted(member)
        gone = sorted(member.owned - wanted)
        if gone:
            some = [place for place in gone if self._c.scheduler.random.random() < 0.7] or gone
            self._on_revoke(self, [TopicPartition(*place) for place in some])
            member.owned -= set(some)
            self._broker.woken()
        new = sorted(place for place in wanted - member.owned if group.free(place))
        if new:
            # Sometimes assign only part of a shard's topics. The service must keep them paused.
            some = [place for place in new if self._c.scheduler.random.random() < 0.7] or new
            member.owned |= set(some)
            self._on_assign(self, [TopicPartition(*place) for place in some])

    def _next(self) -> FakeMessage | None:
        ready: list[FakeMessage] = []
        for place, position in self._positions.items():
            if place in self._paused:
                continue
            log = self._broker.topics[place[0]][place[1]]
            offset = log.next(position, committed=self._committed)
            if offset is not None:
                ready.append(FakeMessage(place, offset, log.entries[offset]))
            else:
                end = max(position, log.end(committed=self._committed))
                if self._told_end.get(place) != end:
                    ready.append(FakeMessage(place, end, None))
        if not ready:
            return None
        chosen = ready[int(self._c.scheduler.random.random() * len(ready))]
        if chosen.entry is None:
            self._told_end[chosen.place] = chosen.at
            self._positions[chosen.place] = chosen.at
        else:
            self._positions[chosen.place] = chosen.at + 1
            self._told_end.pop(chosen.place, None)
        return chosen

    def close(self) -> None:
        """Leave the group."""
        self._c.remove(self)
        if self._group is not None and self._member is not None:
            self._group.leave(self._member)
            self._broker.woken()
