"""Counts what a workload costs the servers: Postgres commits and appends to Kafka's log."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from tests.support.installation import Installation

# A record batch begins with its first offset (8 bytes) and the length of the rest (4 bytes).
_HEADER = struct.Struct(">qi")


@dataclass(frozen=True)
class Costs:
    """``commits``: transactions that wrote, so had to wait for a flush.

    ``appends``: record batches in its topics, and those of transactions and offsets.
    """

    commits: int
    appends: int

    def since(self, before: Costs, runs: int) -> tuple[float, float]:
        """Commits and appends of each of ``runs``."""
        return (self.commits - before.commits) / runs, (self.appends - before.appends) / runs


def costs(made: Installation, kafka_log: Path) -> Costs:
    """The costs so far of an idle installation."""
    # Only a transaction that writes gets an id, so queries, also this one, do not count.
    commits = int(made.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text"))
    # Its own topics and Kafka's: the broker may be deleting those of an earlier installation at this moment.
    segments = (segment for name in (made.settings.topic_prefix, "__") for segment in kafka_log.glob(f"{name}*/*.log"))
    return Costs(commits, sum(map(batches, segments)))


def batches(segment: Path) -> int:
    """Number of record batches in a log segment."""
    data = segment.read_bytes()
    count = position = 0
    while position + _HEADER.size <= len(data):
        _, length = _HEADER.unpack_from(data, position)
        if length <= 0:
            break  # preallocated
        count += 1
        position += _HEADER.size + length
    return count
