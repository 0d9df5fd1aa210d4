"""The partition of a key, as the default partitioner of Kafka's Java clients chooses it."""

from __future__ import annotations

MASK = 0xFFFFFFFF
SEED = 0x9747B28C
M = 0x5BD1E995
# The client's constant for "any partition".
ANY = -1


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 hash as ``org.apache.kafka.common.utils.Utils.murmur2`` computes it."""
    h = (SEED ^ len(data)) & MASK
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        k = (int.from_bytes(data[i : i + 4], "little") * M) & MASK
        k ^= k >> 24
        h = ((h * M) & MASK) ^ ((k * M) & MASK)
    rest = data[whole:]
    if rest:
        h = ((h ^ int.from_bytes(rest, "little")) * M) & MASK
    h ^= h >> 13
    h = (h * M) & MASK
    return h ^ (h >> 15)


def partition_of(key: bytes | str, partitions: int) -> int:
    """The partition of a key, as Java's default and librdkafka's ``murmur2_random`` choose it."""
    data = key.encode() if isinstance(key, str) else key
    return (murmur2(data) & 0x7FFFFFFF) % partitions


def place_of(key: bytes | None, partitions: int) -> int:
    """The partition to publish to, even after partitions were added; ``ANY`` without a key."""
    return ANY if key is None else partition_of(key, partitions)
