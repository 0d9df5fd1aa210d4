"""Everything known about a workload after its drain: requests, rows, events, work and calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

from retrofill.outputs.kept import AREA, MARKER
from retrofill_core.contract.topics import SERVICES, Topic
from retrofill_core.store.tables import SERVICE_TABLES
from tests.chaos import audit
from tests.chaos.work import PART, label
from tests.support.events import Event
from tests.support.installation import Installation
from tests.support.manners import ENDS_OF_ALL

Row = dict[str, Any]
# Key prefix of the workload's poison messages.
POISON = "poison-"
LETTERS = (str(Topic.DEAD_LETTERS),)
TABLES = (
    *("pipeline", "backfill", "backfill_request", "backfill_command", "backfill_interval"),
    *("run", "run_cancel", "task_run", "attempt", "host", "seat", "deadline", "callback", "callback_run"),
)
# Service sessions with an open transaction, and waiting locks. Neither lasts long after a heal.
HELD = """
SELECT a.application_name, a.state, a.query, extract(epoch FROM clock_timestamp() - a.xact_start) AS seconds
FROM pg_stat_activity a WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
  AND a.xact_start < clock_timestamp() - interval '10 seconds'
"""
WAITING = """
SELECT l.pid, l.locktype, l.mode, a.query FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE NOT l.granted AND a.datname = current_database() AND a.query_start < clock_timestamp() - interval '10 seconds'
"""


@dataclass(frozen=True)
class Wish:
    """One request of the workload, however often it is published."""

    id: str
    pipeline: str
    first: date
    last: date
    limit: int = 2
    failing: frozenset[str] = frozenset()
    on_run_failure: str = "continue"
    seconds: float = 0.1
    awaits: str = ""
    """A file in the workload's folder: the seconds of its runs begin when that is there."""
    backwards: bool = False
    reprocess: str = "none"
    hanging: frozenset[str] = frozenset()
    """Days whose runs never end by themselves."""
    manners: Mapping[str, str] = field(default_factory=dict)
    """What the code of a day does to its process (``tests/support/manners.py``)."""
    budgets: tuple[int, ...] = ()
    """Failed runs that the request allows, and each resume after it until one allows any number."""
    step: timedelta = timedelta(days=1)

    @property
    def starts(self) -> list[datetime]:
        """The requested logical dates. ``last`` is included as a whole day."""
        start = datetime.combine(self.first, time(), UTC)
        end = datetime.combine(self.last, time(), UTC) + timedelta(days=1)
        return [start + n * self.step for n in range((end - start) // self.step)]

    @property
    def fails(self) -> set[str]:
        """Days whose runs do not succeed."""
        return {*self.failing, *self.hanging, *(day for day, what in self.manners.items() if ENDS_OF_ALL.get(what))}

    @property
    def days(self) -> list[str]:
        """Labels of the requested dates."""
        return [label(start) for start in self.starts]


@dataclass
class History:
    """The input of the promises. Tests can construct any part of it by hand."""

    wishes: dict[str, Wish] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    """Largest limit that each pipeline ever had."""
    batches: dict[str, int] = field(default_factory=dict)
    """Maximum number of runs of an attempt, by pipeline; 1 if it is not named."""
    cancelled: set[str] = field(default_factory=set)
    """Backfills whose cancel was asked for by a user."""
    tables: dict[str, list[Row]] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=dict)
    notes: list[Row] = field(default_factory=list)
    outputs: dict[tuple[str, str], str] = field(default_factory=dict)
    markers: dict[tuple[str, str], Row] = field(default_factory=dict)
    """What published each of ``outputs``, as the marker beside it says."""
    calls: list[Row] = field(default_factory=list)
    """Calls of functions and webhooks: ``deadline``, ``key`` and ``at``, by the database's clock."""
    alerts: dict[str, list[Row]] = field(default_factory=dict)
    """The deadline alerts of each pipeline, as the workload wrote them."""
    lists: dict[str, dict[str, int]] = field(default_factory=dict)
    """How many callbacks each pipeline lists, by occasion."""
    changes: list[Row] = field(default_factory=list)
    """Every change of a state that was committed, as triggers noted it."""
    committed: list[Row] = field(default_factory=list)
    """Every event that was committed to an outbox, as triggers noted it."""
    poison: dict[str, list[Event]] = field(default_factory=dict)
    """What cannot be read, as it lies on each topic; it is left out of ``events``."""
    poisoned: set[str] = field(default_factory=set)
    """The keys of those of them that the broker acknowledged."""
    clock_slack: timedelta = timedelta()
    """How far the database's clock jumped at most."""
    most_tries: int = 1000
    """How often a callback may be called."""
    sampled: dict[str, int] = field(default_factory=dict)
    """The most live attempts that Postgres ever showed, by backfill id, or by ``pipeline:`` and its name."""
    held: list[Row] = field(default_factory=list)
    ends: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """High watermark by (service, topic, partition)."""
    undrained: list[str] = field(default_factory=list)
    """What did not come to its end in time."""

    def rows(self, table: str) -> list[Row]:
        return self.tables.get(table, [])

    def of(self, topic: Topic) -> list[Event]:
        """Events of a topic, in order within each partition."""
        return self.events.get(str(topic), [])


@dataclass
class Known:
    """What only the stage knows, and the servers do not."""

    folder: Path
    wishes: Mapping[str, Wish]
    cancelled: set[str]
    limits: Mapping[str, int]
    batches: Mapping[str, int]
    alerts: Mapping[str, list[Row]]
    lists: Mapping[str, dict[str, int]]
    calls: Iterable[Row] = ()
    """Of webhooks; those of functions are in a file."""
    sampled: Mapping[str, int] = field(default_factory=dict)
    undrained: list[str] = field(default_factory=list)
    poisoned: set[str] = field(default_factory=set)
    clock: Callable[[float], float] = lambda at: at
    """What Postgres' clock said at a moment of the machine's."""
    clock_slack: timedelta = timedelta()


def gather(made: Installation, known: Known) -> History:
    """Read the history from the servers and files."""
    tables = [*TABLES]
    for package in SERVICE_TABLES:
        tables += [f"{package}_{kind}" for kind in ("outbox", "relay", "shard", "shard_offset")]
    events = {str(topic): made.events(topic, progress=True) for topic in Topic}
    calls = [*lines_of(known.folder / "calls.log"), *known.calls]
    return History(
        wishes=dict(known.wishes),
        limits=dict(known.limits),
        batches=dict(known.batches),
        cancelled=set(known.cancelled),
        tables={name: made.query(f"SELECT * FROM {name}") for name in tables},
        events={topic: [e for e in found if topic in LETTERS or not _spoiled(e)] for topic, found in events.items()},
        poison={topic: [e for e in found if _spoiled(e)] for topic, found in events.items() if topic not in LETTERS},
        poisoned=set(known.poisoned),
        alerts=dict(known.alerts),
        lists=dict(known.lists),
        changes=audit.changes(made),
        committed=audit.committed(made),
        notes=lines_of(known.folder / "work.log"),
        outputs=_outputs(known.folder / "output", PART),
        markers={place: json.loads(text) for place, text in _outputs(known.folder / "output", MARKER).items()},
        calls=[{**call, "at": datetime.fromtimestamp(known.clock(call["at"]), UTC)} for call in calls],
        clock_slack=known.clock_slack,
        sampled=dict(known.sampled),
        held=[*made.query(HELD), *made.query(WAITING)],
        ends=ends_of(made),
        undrained=known.undrained,
    )


def _spoiled(event: Event) -> bool:
    return event.key.startswith(POISON)


def lines_of(path: Path) -> list[Row]:
    """Parse lines of JSON. Each line was a single write, so a kill cannot truncate one."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ends_of(made: Installation) -> dict[tuple[str, str, int], int]:
    from confluent_kafka import TopicPartition

    from retrofill_core.bus.clients import reader

    consumer = reader(made.settings, "ends")
    try:
        return {
            (service.package, str(topic), partition): consumer.get_watermark_offsets(
                TopicPartition(f"{made.settings.topic_prefix}{topic}", partition), timeout=20
            )[1]
            for service in SERVICES.values()
            for topic in service.reads
            for partition in range(made.settings.partitions)
        }
    finally:
        consumer.close()


def _outputs(folder: Path, file: str) -> dict[tuple[str, str], str]:
    """A file of each output, as a reader sees it, by (pipeline, day)."""
    return {
        (path.parent.parent.name, path.parent.name): path.read_text()
        for path in folder.glob(f"*/*/{file}")
        if path.parent.parent.name != AREA
    }
