"""Plays one scenario: an installation with its crew and workload, then the drain."""

from __future__ import annotations

import base64
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import psycopg

from retrofill_core.contract.topics import SERVICES, Topic
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.store.tables import SERVICE_TABLES
from tests.chaos import audit
from tests.chaos.clock import Clock
from tests.chaos.crew import Crew
from tests.chaos.history import History, Known, Wish, ends_of, gather
from tests.chaos.limits_sampler import LimitsSampler
from tests.chaos.pipelines import definitions
from tests.chaos.report import aim_of
from tests.chaos.timed import TimedReceiver
from tests.chaos.workload import Player, Script, id_in, request_of
from tests.support.definitions import alert, daily
from tests.support.installation import ROOT, Installation, until
from tests.support.receiver import Answer
from tests.support.servers import Servers

SECRET = f"whsec_{base64.b64encode(b'c' * 24).decode()}"
ENVIRONMENT = {
    "RETROFILL_LEASE_SECONDS": "4",
    "RETROFILL_DRIVER_SLOTS": "4",
    "RETROFILL_MAX_LOST_ATTEMPTS": "1000",
    # No driver uses it: it is where suspects are retried one at a time.
    "RETROFILL_SPARK_REMOTE": "sc://spark.invalid:15002",
    "RETROFILL_CALLBACK_MAX_ATTEMPTS": "1000",
    "RETROFILL_CALLBACKS": json.dumps({"note": "tests.chaos.callbacks:note"}),
    "RETROFILL_WEBHOOK_SECRETS": json.dumps({"default": [SECRET]}),
    "RETROFILL_WEBHOOK_ALLOW": json.dumps(["127.0.0.1"]),
    "PYTHONPATH": ":".join(str(ROOT / folder) for folder in ("shared", "services", ".")),
}
DRAIN_SECONDS = 150.0
PROBE = "probe"
# Of the probe that was called last, by the database's clock.
STATIONS = """
SELECT extract(epoch FROM b.requested_at) - %s AS planned, extract(epoch FROM r.started_at) - %s AS started,
       extract(epoch FROM b.ended_at) - %s AS ended, extract(epoch FROM c.finished_at) - %s AS called
FROM backfill b JOIN run r ON r.backfill_id = b.id
JOIN deadline d ON d.backfill_id = b.id JOIN callback c ON c.deadline_id = d.id
WHERE b.id = ANY(%s) ORDER BY greatest(b.ended_at, c.finished_at) DESC LIMIT 1
"""


@dataclass
class Stage:
    """What a scenario works with.

    ``chance`` is seeded; ``faults`` counts injected faults by kind.
    """

    made: Installation
    crew: Crew
    chance: random.Random
    folder: Path
    script: Script
    player: Player
    receiver: TimedReceiver
    servers: Servers | None = None
    alerts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    lists: dict[str, dict[str, int]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    recoveries: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Wish] = field(default_factory=dict)
    """What scenarios ask for beside the script."""
    clock: Clock = field(default_factory=Clock)
    limits: dict[str, int] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    """Both of pipelines beside the script's."""
    _probes: int = 0

    def fault(self, kind: str) -> None:
        """Count one fault."""
        self.faults[kind] += 1

    def wait(self, seconds: float) -> None:
        """Let the workload run for the duration of a fault."""
        time.sleep(seconds)

    def runs_ended(self) -> int:
        return int(self.made.value("SELECT count(*) FROM run WHERE finished_at IS NOT NULL"))

    def recovered(self, kind: str, shards: Sequence[int] | None = None) -> float:
        """Wait until work progresses after a heal; returns the seconds.

        A probe request to each shard must complete, including its deadline's callback. If the aim is missed, facts
        say what the slowest probe waited for, and how long the same takes beside the workload without a fault.
        """
        sent = time.time()
        seconds, probes = self._probed(kind, shards)
        self.recoveries.setdefault(kind, []).append(seconds)
        if seconds > aim_of(kind):
            (slowest,) = self.made.query(STATIONS, *[sent] * 4, probes)
            self.facts[f"the slowest probe after {kind}"] = ", ".join(f"{k} {s:.1f} s" for k, s in slowest.items())
            without, _ = self._probed("nothing", shards)
            self.facts[f"the same probes again, without a fault, after {kind}"] = f"{without:.1f} s"
        return seconds

    def _probed(self, kind: str, shards: Sequence[int] | None) -> tuple[float, list[str]]:
        """Send a probe to each shard; returns the seconds until all have completed, and their ids."""
        began = time.monotonic()
        probes = []
        for shard in range(self.made.settings.partitions) if shards is None else shards:
            day = date(2001, 1, 1) + timedelta(days=self._probes)
            self._probes += 1
            wish = Wish(id_in(shard, PROBE), PROBE, day, day, limit=4, seconds=0.01)
            self.extra[wish.id] = wish
            probes.append(wish.id)
            self.player.send(Topic.BACKFILL_REQUESTS, wish.id, request_of(wish, self.folder), 1)
        statement = (
            "SELECT count(*) FROM backfill b JOIN deadline d ON d.backfill_id = b.id"
            " JOIN callback c ON c.deadline_id = d.id"
            " WHERE b.id = ANY(%s) AND b.state = 'succeeded' AND c.state = 'succeeded'"
        )
        until(
            lambda: self.quietly(lambda: self.made.value(statement, probes)) == len(probes),
            f"everything moves again after {kind}",
            lambda: str(self.made.query("SELECT id, state FROM backfill WHERE id = ANY(%s)", probes)),
            DRAIN_SECONDS,
        )
        return time.monotonic() - began, probes

    @staticmethod
    def quietly(ask: Callable[[], Any]) -> Any:
        """The result of a Postgres query, or ``None`` while the server is down."""
        try:
            return ask()
        except psycopg.Error:
            return None

    def wishes(self) -> dict[str, Wish]:
        """All requests, including those of the scenario itself."""
        return {**self.script.wishes, **self.extra}


def alerts_of(definition: PipelineDefinition) -> list[dict[str, Any]]:
    """The alerts of a pipeline as data."""
    return [each.model_dump(mode="json") for each in definition.deadlines]


def lists_of(definition: PipelineDefinition) -> dict[str, int]:
    """How many callbacks a pipeline lists, by occasion."""
    return {str(occasion): len(rules) for occasion, rules in definition.rules.items()}


@contextmanager
def staged(
    made: Installation,
    seed: int,
    *,
    least: int = 8,
    replicas: int = 1,
    environment: dict[str, str] | None = None,
    servers: Servers | None = None,
) -> Iterator[Stage]:
    """Run the services on a seed's workload; yields the stage for the scenario."""
    folder = made.settings.home / "data"
    folder.mkdir()
    script = Script(seed)
    audit.install(made)
    with (
        closing(TimedReceiver()) as receiver,
        Crew(made, {**ENVIRONMENT, **(environment or {})}, replicas) as crew,
    ):
        hook = receiver.answer("/soon", Answer(503), Answer(503), Answer(204))
        probe = daily(
            PROBE,
            max_active_runs=4,
            code=definitions(script, folder, hook)[0].code.model_dump(),
            deadlines=[
                alert(
                    "now",
                    "BACKFILL_REQUESTED_AT",
                    -1,
                    fire_if_past=True,
                    fire_on_failure=True,
                    callback={"kind": "webhook", "url": hook},
                )
            ],
        )
        for definition in (*definitions(script, folder, hook), probe):
            made.apply(definition)
        player = Player(made, script, folder, least)
        stage = Stage(made, crew, random.Random(seed), folder, script, player, receiver, servers)
        stage.alerts = {each.name: alerts_of(each) for each in (*definitions(script, folder, hook), probe)}
        stage.lists = {each.name: lists_of(each) for each in (*definitions(script, folder, hook), probe)}
        player.start()
        yield stage
        if player.is_alive():
            player.stop()


def finish(stage: Stage, sampler: LimitsSampler) -> History:
    """Stop the faults and requests, wait for the drain, then read the history."""
    stage.player.stop()
    undrained = drain(stage)
    assert stage.crew.error is None, stage.crew.error
    sampler.stop()
    hooks = [
        {"deadline": _called(request.json["data"]), "key": request.headers["webhook-id"], "at": at}
        for at, request in stage.receiver.timed("/soon")
    ]
    limits = {f"p{n}": stage.script.limit(n) for n in range(stage.script.pipelines)} | {PROBE: 4}
    return gather(
        stage.made,
        Known(
            stage.folder,
            stage.wishes(),
            stage.script.cancelled,
            limits | stage.limits,
            {f"p{n}": stage.script.batch(n) for n in range(stage.script.pipelines)} | stage.batches,
            stage.alerts,
            stage.lists,
            hooks,
            sampler.most,
            undrained,
            stage.player.spoiler.sent,
            stage.clock.of_postgres,
            stage.clock.slack,
        ),
    )


def _called(data: dict[str, Any]) -> int:
    """The id of the callback that a webhook is about."""
    return int(data["deadline_id"] if "deadline_id" in data else data["callback_id"])


def drain(stage: Stage) -> list[str]:
    """Wait until all work is done; returns what is left at the timeout."""

    def left() -> list[str]:
        stage.player.resume_paused()
        return waiting(stage.made, stage.wishes())

    return still_waiting(left)


def still_waiting(ask: Callable[[], list[str]]) -> list[str]:
    """Poll ``ask`` until it returns nothing; returns what it names at the timeout."""
    left: list[str] = []

    def done() -> bool:
        left[:] = ask()
        return not left

    try:
        until(done, "everything ends", seconds=DRAIN_SECONDS)
    except AssertionError:
        return [f"not done {DRAIN_SECONDS:.0f} s after the last fault: {each}" for each in left]
    return []


def waiting(made: Installation, wishes: dict[str, Wish]) -> list[str]:
    """Unfinished work of all kinds."""
    answered = {row["id"] for row in made.query("SELECT id FROM backfill_request")}
    left = [f"{id} is not answered" for id in wishes.keys() - answered]
    for what, statement in {
        "active backfills": "SELECT id, state FROM backfill WHERE ended_at IS NULL",
        "live attempts": "SELECT id, backfill_id, state, lease_until FROM attempt WHERE ended_at IS NULL",
        "armed deadlines": "SELECT id, due_at FROM deadline WHERE state = 'armed'",
        "open callbacks": "SELECT deadline_id, state, last_error FROM callback WHERE state IN ('pending', 'running')",
        **{f"unpublished events of {package}": f"SELECT id FROM {package}_outbox" for package in SERVICE_TABLES},
        **{
            f"open batch of {package}": f"SELECT batch FROM {package}_relay WHERE batch_ids <> '{{}}'"
            for package in SERVICE_TABLES
        },
    }.items():
        rows = made.query(statement)
        if rows:
            left.append(f"{len(rows)} {what}: {rows[:3]}")
    return left or unread(made)


def unread(made: Installation) -> list[str]:
    """Topics that a service has not read to the end."""
    ends = ends_of(made)
    left = []
    for service in SERVICES.values():
        for row in made.query(f"SELECT * FROM {service.package}_shard_offset"):
            end = ends[service.package, row["topic"], row["partition"]]
            if row["next_offset"] != end:
                left.append(f"{service.name} is at {row['next_offset']} of {end} in {row['topic']} {row['partition']}")
    return left
