"""Topics and services: their names, and which service reads which topic."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
