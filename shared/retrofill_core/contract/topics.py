"""Topics and services: their names, which service reads which topic, and the partition of a key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from itertools import groupby


class Topic(StrEnum):
    """Topic names, without the prefix."""

    PIPELINES = "pipelines"
    PIPELINE_EVENTS = "pipeline-events"
    BACKFILL_REQUESTS = "backfill-requests"
    BACKFILL_EVENTS = "backfill-events"
    RUN_REPORTS = "run-reports"
    RUN_EVENTS = "run-events"
    BACKFILL_STATES = "backfill-states"
    INTERVAL_STATES = "interval-states"
    DEADLINES = "deadlines"
    DEADLINE_MISSED = "deadline-missed"
    CALLBACK_REQUESTS = "callback-requests"
    CALLBACK_EVENTS = "callback-events"
    DEAD_LETTERS = "dead-letters"


COMPACTED = frozenset({Topic.PIPELINES, Topic.BACKFILL_STATES, Topic.INTERVAL_STATES})
# Topics that not only services write, or that a service writes itself: the reader may write them, and
# republishes a message from a wrong partition.
REPUBLISHED = frozenset({Topic.PIPELINES, Topic.BACKFILL_REQUESTS, Topic.RUN_REPORTS, Topic.CALLBACK_REQUESTS})
# So many relays, one after the other, can each find out that a topic does not store.
TRANSACTIONAL_IDS = 16


@dataclass(frozen=True)
class Service:
    """A service: the topics it reads, and its names."""

    name: str
    reads: tuple[Topic, ...]

    @property
    def package(self) -> str:
        """Its Python package, and the prefix of its tables."""
        return self.name.replace("-", "_")

    @property
    def role(self) -> str:
        """Its Postgres role."""
        return f"retrofill_{self.package}"

    def cursor_topic(self, prefix: str) -> str:
        """Its relay's topic: its first partition's owner publishes; the last record there is the cursor."""
        return f"{prefix}cursors.{self.name}"

    def group(self, prefix: str) -> str:
        """Its consumer group."""
        return f"{prefix}{self.name}"

    def relay_id(self, prefix: str) -> str:
        """Its relay's group, and the prefix of the relay's transactional ids."""
        return f"{self.group(prefix)}-relay"

    def transactional_ids(self, prefix: str) -> tuple[str, ...]:
        """The ids with which its relay publishes: one at a time (``docs/decisions/relay-changes-its-id.md``)."""
        first = self.relay_id(prefix)
        return (first, *(f"{first}-{n}" for n in range(1, TRANSACTIONAL_IDS)))


def is_own(topic: str, prefix: str) -> bool:
    """Whether ``topic`` (a full name) is one of Retrofill's, or has its prefix."""
    own = {prefix + name for name in Topic} | {service.cursor_topic(prefix) for service in SERVICES.values()}
    return topic in own or (prefix != "" and topic.startswith(prefix))


PLANNER = Service("backfill-planner", (Topic.PIPELINES, Topic.BACKFILL_REQUESTS, Topic.RUN_EVENTS))
RUN_STARTER = Service("run-starter", (Topic.BACKFILL_EVENTS, Topic.RUN_REPORTS))
WATCHER = Service("deadline-watcher", (Topic.DEADLINES,))
CALLBACK_RUNNER = Service("callback-runner", (Topic.CALLBACK_REQUESTS,))
SERVICES = {service.name: service for service in (PLANNER, RUN_STARTER, WATCHER, CALLBACK_RUNNER)}
# Other clients that log in to Kafka: the CLI, users who request backfills, and the web console (admin/access.py).
OPERATOR, REQUESTER, CONSOLE = "operator", "requester", "console"
# The CLI's client id, also the group of its consumers, which commit nothing.
CLI_CLIENT = "retrofill-cli"
# Topics of requests, which change something: anyone with the right to write them may ask.
REQUESTS = frozenset({Topic.BACKFILL_REQUESTS, Topic.CALLBACK_REQUESTS})


MASK = 0xFFFFFFFF
SEED = 0x9747B28C
M = 0x5BD1E995
# The client's constant for "any partition".
ANY = -1


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 hash as ``org.apache.kafka.common.utils.Utils.murmur2`` computes it."""
    whole = len(data) & ~3
    h = _after_blocks(data[:whole], len(data))
    rest = data[whole:]
    if rest:
        h = ((h ^ int.from_bytes(rest, "little")) * M) & MASK
    return _finished(h)


def _after_blocks(blocks: bytes, length: int) -> int:
    """The state after the whole blocks, of four bytes, of data of this length."""
    h = (SEED ^ length) & MASK
    for i in range(0, len(blocks), 4):
        h = ((h * M) & MASK) ^ _mixed(blocks[i : i + 4])
    return h


def _mixed(block: bytes) -> int:
    k = (int.from_bytes(block, "little") * M) & MASK
    k ^= k >> 24
    return (k * M) & MASK


def _finished(h: int) -> int:
    h ^= h >> 13
    h = (h * M) & MASK
    return h ^ (h >> 15)


# Most messages in a row are about few backfills.
@lru_cache(maxsize=4096)
def partition_of(key: bytes | str, partitions: int) -> int:
    """The partition of a key, as Java's default and librdkafka's ``murmur2_random`` choose it."""
    data = key.encode() if isinstance(key, str) else key
    return (murmur2(data) & 0x7FFFFFFF) % partitions


def partitions_of(ids: Iterable[int], partitions: int) -> list[int]:
    """``partition_of`` of each id as text. Ids that follow one another share most of the work."""
    found: list[int] = []
    for digits, alike in groupby(ids, key=lambda id: len(str(id))):
        size = digits % 4 or 4
        limit, tails = 10**size, _tails(size)
        for head, same in groupby(alike, key=lambda id: id // limit):
            h = _after_blocks(str(head).encode() if head else b"", digits)
            if size == 4:
                h = (h * M) & MASK
                states = (h ^ tails[id % limit] for id in same)
            else:
                states = (((h ^ tails[id % limit]) * M) & MASK for id in same)
            found += [(_finished(state) & 0x7FFFFFFF) % partitions for state in states]
    return found


@cache
def _tails(size: int) -> tuple[int, ...]:
    """What the last 1 to 4 digits contribute: a whole block mixed, a shorter rest as it is."""
    texts = (f"{n:0{size}}".encode() for n in range(10**size))
    return tuple(_mixed(text) if size == 4 else int.from_bytes(text, "little") for text in texts)


def place_of(key: bytes | None, partitions: int) -> int:
    """The partition to publish to, even after partitions were added; ``ANY`` without a key."""
    return ANY if key is None else partition_of(key, partitions)
