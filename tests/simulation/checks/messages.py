"""Messages are consumed and published exactly once and answered; only poison is dead-lettered."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from retrofill_core.bus.takeover import DEATHS
from retrofill_core.contract.topics import SERVICES, Topic
from tests.simulation.bus.broker import ce_id_of
from tests.simulation.checks.base import Check, changed
from tests.simulation.memory.rows import Tx
from tests.simulation.servers import LOST

if TYPE_CHECKING:
    from tests.simulation.world import World

Place = tuple[str, bytes | None, str | None]
OUTBOXES = {f"{service.package}_outbox": service for service in SERVICES.values()}
OFFSETS = {f"{service.package}_shard_offset": service for service in SERVICES.values()}
NOTES = {"taken_offset", "trying_offset", "trying_deaths"}


class Consumed(Check):
    """Invariant 8: offsets only advance, in transactions of the shard's owner."""

    name = "consumed once"

    def committed(self, tx: Tx) -> None:
        """Check offset changes against the shard's owner."""
        for name in OFFSETS:
            for old, new in changed(tx, name):
                if old is not None and new is not None:
                    # A takeover, and a try on an added partition, are recorded without advancing the offset.
                    noted = {column for column in new if new[column] != old[column]} <= NOTES
                    self.require(
                        noted or new["next_offset"] > old["next_offset"], lambda: f"an offset went back: {old} → {new}"
                    )
        names = {name for name, _, _ in tx.changes}
        shard = tx.notes.get("shard")
        if shard is None or not names & (OUTBOXES.keys() | OFFSETS.keys()):
            return
        table, partition, epoch = shard
        row = self.row(table, "partition", partition)
        self.require(
            row["epoch"] == epoch, lambda: f"{tx.who} committed as owner {epoch} of {table} {partition}: {row}"
        )


class Published(Check):
    """Invariants 9 and 13: a subscriber sees each outbox row once, per key in commit order."""

    name = "published once"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # ce_ids in commit order by topic, key and source. There is no order between two services.
        self.events: dict[Place, list[str]] = defaultdict(list)

    def committed(self, tx: Tx) -> None:
        """Record the events to publish."""
        rows = [new for name in OUTBOXES for old, new in changed(tx, name) if old is None and new is not None]
        for row in sorted(rows, key=lambda row: row["id"]):
            headers = dict(row["headers"])
            self.events[row["topic"], row["key"], headers.get("ce_source")].append(headers.get("ce_id", ""))

    def at_the_end(self) -> None:
        """Compare with what a ``read_committed`` subscriber sees."""
        seen: dict[Place, list[str]] = defaultdict(list)
        for topic in map(str, Topic):
            for _, _, entry in self.world.broker.read(topic):
                if entry.transaction is not None:
                    headers = {name: (raw or b"").decode() for name, raw in entry.headers}
                    seen[topic, entry.key, headers.get("ce_source")].append(headers.get("ce_id", ""))
        for place in seen.keys() | self.events.keys():
            expected, found = self.events.get(place, []), seen.get(place, [])
            self.require(expected == found, lambda: f"{place}: committed {expected}, a subscriber sees {found}")


class Answered(Check):
    """Each copy of a client's message is answered, unless it is a dead letter, which is all that its client gets: all the same.

    ``Letters`` judges which may be dead letters.
    """

    name = "answered"

    def at_the_end(self) -> None:
        answers: Counter[str] = Counter()
        first: dict[str, Any] = {}
        for topic in (Topic.BACKFILL_EVENTS, Topic.PIPELINE_EVENTS):
            for _, _, entry in self.world.broker.read(str(topic)):
                body = self.world.body(entry)
                reply = body.get("in_reply_to")
                if reply is not None:
                    answers[reply] += 1
                    said = first.setdefault(reply, body)
                    # A repeated definition of a pipeline says whether it changed something.
                    same = body == said or topic == Topic.PIPELINE_EVENTS
                    self.require(same, lambda: f"message {reply} is answered with {said} and with {body}")
        letters = Counter(ce_id_of(entry) for _, _, entry in self.world.broker.read(str(Topic.DEAD_LETTERS)))
        for ce_id, times in self.world.published.items():
            got, dead = answers[ce_id], letters[ce_id]
            self.require(
                # A message on the wrong partition is answered there, and its copy may be a dead letter, too.
                got <= times <= got + dead,
                lambda: (
                    f"message {ce_id} was published {times} times, a dead letter {dead} times and answered {got} times"
                ),
            )


class Letters(Check):
    """Invariant 12: only poison is dead-lettered, once, with its bytes and a reason."""

    name = "dead letters"

    def committed(self, tx: Tx) -> None:
        """No valid message of a service is dead-lettered."""
        for name in OUTBOXES:
            for old, new in changed(tx, name):
                if old is None and new is not None and new["topic"] == Topic.DEAD_LETTERS:
                    self._buried(tx, dict(new["headers"]), new["value"])

    def _buried(self, tx: Tx, headers: dict[str, str], value: bytes) -> None:
        known = headers.get("ce_id") in self.world.poison or headers.get("ce_id") in self.world.lost
        # A permanently failed callback leaves a replay message as a dead letter. It was never on a
        # topic.
        failed = {new["deadline_id"] for _, new in changed(tx, "callback") if new and new["state"] == "failed"}
        replay = headers.get("ce_type") == "CallbackReplayRequested" and "retrofill_origin_offset" not in headers
        known = known or (replay and json.loads(value)["deadline_id"] in failed) or self._crashed_often(headers)
        self.require(known, lambda: f"a message of our own was buried: {headers} {value!r}")

    def _crashed_often(self, headers: dict[str, str]) -> bool:
        """Whether crashes hit the service so often that the message may be held responsible."""
        if not headers["retrofill_reason"].startswith("the process died"):
            return False
        came = int(headers["retrofill_origin_timestamp_ms"]) / 1000
        crashed = [at for name, at in self.world.crashes if name == headers["retrofill_service"] and at >= came - 0.001]
        return len(crashed) >= DEATHS

    def at_the_end(self) -> None:
        """Each poison message has its dead letter."""
        letters: dict[str, list[tuple[bytes | None, bytes | None]]] = defaultdict(list)
        for _, _, entry in self.world.broker.read(str(Topic.DEAD_LETTERS)):
            headers = {name: (raw or b"").decode() for name, raw in entry.headers}
            letters[ce_id_of(entry)].append((entry.key, entry.value))
            self.require(bool(headers.get("retrofill_reason")), lambda: f"a dead letter without a reason: {headers}")
        spoiled = _spoiled(self.world)
        for ce_id in self.world.lost:
            self.require(
                len(letters[ce_id]) == spoiled[ce_id], lambda: f"what was lost has the letters {letters[ce_id]}"
            )
        for ce_id, original in self.world.poison.items():
            self.require(
                letters[ce_id] == [original], lambda: f"poison {ce_id} {original} has the letters {letters[ce_id]}"
            )


def _spoiled(world: World) -> Counter[str]:
    """Number of unreadable copies of each message on topics that a service reads."""
    read = {str(topic) for service in world.services for topic in service.reads}
    return Counter(
        ce_id_of(entry) for topic in sorted(read) for _, _, entry in world.broker.read(topic) if entry.value == LOST
    )
