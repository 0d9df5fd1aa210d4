"""All scenarios by command-line name."""

from __future__ import annotations

from tests.chaos import (
    bad_manners,
    clock_fault,
    disk,
    driver_faults,
    outages,
    overload,
    preemption,
    scenarios,
    server_faults,
    several,
    small_disk,
    supervisors,
    switches,
    users_limits,
)
from tests.chaos.scenarios import Scenario

PLAYS: dict[str, Scenario] = {
    "kills": scenarios.kills,
    "crash-points": scenarios.crash_points,
    "freezes": scenarios.freezes,
    "relay-freezes": scenarios.relay_freezes,
    "random-freezes": scenarios.random_freezes,
    "rolling": scenarios.rolling,
    "scaling": scenarios.scaling,
    "drivers": scenarios.drivers,
    "drivers-frozen": driver_faults.drivers_frozen,
    "drivers-without-kafka": driver_faults.drivers_without_kafka,
    "preempted": preemption.preempted,
    "users-limits": users_limits.users_limits,
    "bad-manners": bad_manners.bad_manners,
    "several": several.several,
    "kafka-killed": server_faults.kafka_killed,
    "kafka-away": outages.kafka_away,
    "receiver-away": outages.receiver_away,
    "postgres-killed": server_faults.postgres_killed,
    "postgres-switched": switches.postgres_switched,
    "commits-broken": server_faults.commits_broken,
    "postgres-line": server_faults.postgres_line,
    "kafka-line": server_faults.kafka_line,
    "open-transaction": server_faults.open_transaction,
    "disk-full": disk.disk_full,
    "wal-full": small_disk.wal_full,
    "kafka-full": small_disk.kafka_full,
    "clock-jumps": clock_fault.clock_jumps,
    "two-supervisors": supervisors.two_supervisors,
    "requests-at-once": overload.requests_at_once,
    "giant": overload.giant,
}
# Uses the whole stack instead of an installation.
SPARK = "spark-stack"
