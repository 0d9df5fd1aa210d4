"""Faults of the servers: outages, locks held by another session, and poison messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from retrofill_core.bus.envelope import headers_of, wire_headers
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.base import Message
from retrofill_core.contract.runs import SUBJECT, AttemptHeartbeat, Report, subject_of
from retrofill_core.contract.topics import Topic
from retrofill_core.store.history import SPAN
from retrofill_core.store.tables import SERVICE_TABLES
from tests.simulation.memory.rows import NO_KEY_UPDATE, Tx

if TYPE_CHECKING:
    from tests.simulation.world import World

# The value of a message that became unreadable.
LOST = b"{lost"
# Tables whose rows another session may lock.
LOCKED = ("backfill", "pipeline", "run", "backfill_planner_shard", "run_starter_shard", "deadline_watcher_shard")


class Servers:
    """The faults of one world's Postgres and Kafka."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.holders: list[Tx] = []

    def is_disturbed(self) -> bool:
        """Whether a server fault is still active."""
        return self._world.database.down or self._world.broker.down or bool(self.holders)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._world.scheduler.at(self._world.scheduler.now + seconds, action)

    def stop_postgres(self, seconds: float) -> None:
        """Stop Postgres: all sessions end, and uncommitted work is lost."""
        self._world.database.stop()
        self._after(seconds, self.start_postgres)

    def switch_postgres(self, seconds: float) -> None:
        """Stop Postgres for good. Another one has all that was committed, and begins a generation."""
        self._world.database.stop()
        self._after(seconds, self._take_over)

    def _take_over(self) -> None:
        if self._world.database.down:
            self.begin_generation()
            self.start_postgres()

    def begin_generation(self) -> None:
        """What ``retrofill.begin_generation`` does, which Postgres executes itself."""
        tables = self._world.database.tables
        for own in SERVICE_TABLES.values():
            for row in (*tables[own.shard.name].rows, *tables[own.relay.name].rows):
                assert row.committed is not None
                epoch = row.committed["epoch"] + SPAN
                row.alter(**{name: epoch for name in ("epoch", "taken_epoch") if name in row.committed})
        for name in ("host", "attempt", "run", "deadline"):
            tables[name].next_id += SPAN
        for row in tables["run"].rows:
            if row.committed is not None and row.committed["state"] == "staged":
                row.alter(publication=row.committed["publication"] + 8)

    def start_postgres(self) -> None:
        """Start Postgres. Listeners reconnect and learn that they may have missed notifications."""
        if self._world.database.down:
            self._world.database.down = False
            for instance in self._world.alive():
                self._after(self._world.random.random(), instance.listens_again)

    def stop_kafka(self, seconds: float) -> None:
        """Make Kafka unreachable. Acknowledged messages, groups and transactions survive."""
        self._world.broker.down = True
        self._after(seconds, self.start_kafka)

    def start_kafka(self) -> None:
        self._world.broker.down = False
        self._world.broker.woken()

    def hold_locks(self, seconds: float) -> bool:
        """Lock random unlocked rows in another session's transaction."""
        world, random = self._world, self._world.random
        rows = world.database.tables[random.choice(LOCKED)].rows
        free = [row for row in rows if row.committed is not None and not row.locks]
        if not free or world.database.down:
            return False
        tx = world.database.begin("somebody else")
        for row in random.sample(free, random.randint(1, len(free))):
            tx.lock(row, NO_KEY_UPDATE, skip=True)
        self.holders.append(tx)
        self._after(seconds, lambda: self._let_go(tx))
        return True

    def _let_go(self, tx: Tx) -> None:
        if tx in self.holders:
            self.holders.remove(tx)
            self._world.database.rollback(tx)

    def heal(self) -> None:
        """End all server faults."""
        self.start_postgres()
        self.start_kafka()
        for tx in list(self.holders):
            self._let_go(tx)

    # messages

    def poison(self) -> bool:
        """Publish a message that no handler accepts, on any topic that a service reads."""
        world, random = self._world, self._world.random
        topic = random.choice(sorted({topic for service in world.services for topic in service.reads}))
        ce_id = f"poison-{len(world.poison)}"
        key, value, kind = random.choice(
            [self._garbage, self._of_no_kind, self._without_key, self._refused, self._refused]
        )(topic)
        headers: list[tuple[str, bytes | None]] = [("ce_id", ce_id.encode()), ("ce_source", ce_id.encode())]
        if kind is not None:
            headers.append(("ce_type", kind.encode()))
        world.poison[ce_id] = (key, value)
        world.append(str(topic), key, value, headers)
        return True

    def _garbage(self, topic: Topic) -> tuple[bytes, bytes, str | None]:
        return self._key(), self._world.random.choice([b"{broken", b"\xff\xfe", b"[]", b"7"]), None

    def _of_no_kind(self, topic: Topic) -> tuple[bytes, bytes, str | None]:
        return self._key(), b'{"type": "NobodyKnows"}', "NobodyKnows"

    def _without_key(self, topic: Topic) -> tuple[bytes, bytes, str | None]:
        return b"\xff\xff", b'{"type": "AttemptHeartbeat"}', None

    def _refused(self, topic: Topic) -> tuple[bytes, bytes, str | None]:
        """A readable message that every handler refuses."""
        rows = self._world.database.rows("backfill")
        message: Message = AttemptHeartbeat(backfill_id="nobody", attempt_id=999_999)
        if topic == Topic.BACKFILL_REQUESTS and rows:
            # A different body under a known id.
            message = BackfillRequested.model_validate(
                {"pipeline": "another", "from": "2020-01-01", "to": "2020-01-01", "triggered_by": "poison"}
            )
            return rows[0]["id"].encode(), message.encode(), message.type
        # A report for an unknown run, or on the wrong topic.
        return b"nobody", message.encode(), message.type

    def _key(self) -> bytes:
        return f"poison{self._world.random.randint(0, 9)}".encode()

    def lose_message(self) -> bool:
        """Make the next message between services unreadable: it becomes a dead letter."""
        self._world.broker.spoil = self._spoil
        return True

    def _spoil(self, topic: str, headers: list[tuple[str, bytes | None]], value: bytes | None) -> bytes | None:
        world = self._world
        if value is None or not any(topic in service.reads for service in world.services):
            return value
        ce_id = (dict(headers).get("ce_id") or b"").decode()
        if ce_id in world.poison:
            return value
        world.broker.spoil = None
        world.lost[ce_id] = value
        return LOST


def wire(message: Message, source: str) -> list[tuple[str, bytes | None]]:
    """Kafka headers of a message from ``source``."""
    about = {SUBJECT: subject_of(message)} if isinstance(message, Report) else {}
    return [(n, v.encode()) for n, v in wire_headers(headers_of(message, source) | about) if isinstance(v, str)]


def body_of(value: bytes | None) -> dict[str, Any]:
    """The message's JSON object, or an empty one if it is poison."""
    try:
        found = json.loads(value or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
