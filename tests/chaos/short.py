"""The short selection, which is part of the tests: a few faults of each kind."""

from __future__ import annotations

from tests.chaos import overload, scenarios, server_faults
from tests.chaos.crew import NAMES
from tests.chaos.stage import Stage


def some_crash_points(stage: Stage) -> None:
    """Two rounds: eight of the points."""
    scenarios.crash_points(stage, count=2)


def a_restless_night(stage: Stage) -> None:
    """Services and drivers killed, and one service woken as a former owner."""
    scenarios.kills(stage, count=3)
    scenarios.drivers(stage, count=3)
    scenarios.freezes(stage, (stage.chance.choice(NAMES),))


def many_requests(stage: Stage) -> None:
    """Five hundred requests at once."""
    overload.requests_at_once(stage, count=500)


def bad_servers(stage: Stage) -> None:
    """Kafka and Postgres killed once, commits of one service broken, a transaction left open."""
    server_faults.kafka_killed(stage, count=1)
    server_faults.postgres_killed(stage, count=1)
    server_faults.commits_broken(stage, (stage.chance.choice(NAMES[:2]),), hits=2)
    server_faults.open_transaction(stage, seconds=3)
