"""The partition of a key, as the default partitioner of Kafka's Java clients chooses it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import groupby

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
