"""All scenarios by the names that the command line knows: the long run plays ``LONG``, the tests play ``SHORT``."""

from __future__ import annotations

from tests.chaos import disk, overload, scenarios, server_faults, short
from tests.chaos.scenarios import Scenario

LONG: dict[str, Scenario] = {
    "kills": scenarios.kills,
    "crash-points": scenarios.crash_points,
    "freezes": scenarios.freezes,
    "relay-freezes": scenarios.relay_freezes,
    "random-freezes": scenarios.random_freezes,
    "rolling": scenarios.rolling,
    "scaling": scenarios.scaling,
    "drivers": scenarios.drivers,
    "kafka-killed": server_faults.kafka_killed,
    "postgres-killed": server_faults.postgres_killed,
    "commits-broken": server_faults.commits_broken,
    "postgres-line": server_faults.postgres_line,
    "kafka-line": server_faults.kafka_line,
    "open-transaction": server_faults.open_transaction,
    "disk-full": disk.disk_full,
    "requests-at-once": overload.requests_at_once,
    "giant": overload.giant,
}
SHORT: dict[str, Scenario] = {
    "short-crash-points": short.some_crash_points,
    "short-night": short.a_restless_night,
    "short-requests": short.many_requests,
    "short-servers": short.bad_servers,
}
PLAYS = LONG | SHORT
# With the whole stack instead of an installation.
SPARK = "spark-stack"
