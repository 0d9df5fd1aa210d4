"""The topics of the contract: their names, and which service reads and writes which."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Topic(StrEnum):
    """Names of the topics, without the prefix."""

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
# What others than services write too, with whatever partitioner: on a wrong partition it is published again by its reader.
PUBLISHED_AGAIN = frozenset({Topic.PIPELINES, Topic.BACKFILL_REQUESTS, Topic.RUN_REPORTS, Topic.CALLBACK_REQUESTS})


@dataclass(frozen=True)
class Service:
    """One of the four services: the topics that it reads and its names everywhere."""

    name: str
    reads: tuple[Topic, ...]

    @property
    def package(self) -> str:
        """Import name; also the prefix of its tables."""
        return self.name.replace("-", "_")

    @property
    def role(self) -> str:
        """Its Postgres role."""
        return f"retrofill_{self.package}"

    def cursor_topic(self, prefix: str) -> str:
        """Its relay's topic of one partition: who is assigned it publishes, and the last record says what was."""
        return f"{prefix}cursors.{self.name}"

    def group(self, prefix: str) -> str:
        """Its consumer group."""
        return f"{prefix}{self.name}"


def is_own(topic: str, prefix: str) -> bool:
    """Whether the topic (its full name) is, or looks like, one of Retrofill's."""
    own = {prefix + name for name in Topic} | {service.cursor_topic(prefix) for service in SERVICES.values()}
    return topic in own or (prefix != "" and topic.startswith(prefix))


PLANNER = Service("backfill-planner", (Topic.PIPELINES, Topic.BACKFILL_REQUESTS, Topic.RUN_EVENTS))
RUN_STARTER = Service("run-starter", (Topic.BACKFILL_EVENTS, Topic.RUN_REPORTS))
WATCHER = Service("deadline-watcher", (Topic.DEADLINES,))
CALLBACK_RUNNER = Service("callback-runner", (Topic.CALLBACK_REQUESTS,))
SERVICES = {service.name: service for service in (PLANNER, RUN_STARTER, WATCHER, CALLBACK_RUNNER)}
# Who else logs in to Kafka: drivers, the command line, and whoever asks for backfills (``access.py`` has their rights).
DRIVER, OPERATOR, REQUESTER = "driver", "operator", "requester"
# The client name of the command line, which its consumers have as their group; they commit nothing.
CLI_CLIENT = "retrofill-cli"
