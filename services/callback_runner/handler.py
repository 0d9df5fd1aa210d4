"""gather → decide → apply: claims what is due for as many slots as are free, and what was left by runners that died."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection

from callback_runner.call import LEASE_SECONDS, Call, Claim, failed
from callback_runner.decide import GiveUp, Raised, TryAgain, after_try, seconds_to_next
from retrofill.bus.faults import Poison
from retrofill.bus.handler import QuietHandler, Received
from retrofill.bus.service import Context
from retrofill.bus.topics import Topic
from retrofill.bus.transaction import Transaction
from retrofill.messages.deadlines import CallbackRequested
from retrofill.store import callbacks
from retrofill.store.engine import make_engine

# The only thing that is looked at: the callbacks of the shard.
CALLBACKS = "callbacks"
# A slot of this instance got free.
SLOT_FREE = "callback_slot"
# A free slot is offered to the shards one after the other, first to the one that has waited longest.
TURN_SECONDS = 0.005
CLOSE_SECONDS = 5.0


class CallbackHandler(QuietHandler):
    """The callback-runner."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        # Calls have connections of their own: however many they are, the shards' transactions need not wait for one.
        dsn = self._settings.dsn_of(context.service.name)
        self._engine = make_engine(dsn, f"{context.instance}-calls", pool_size=min(self._settings.callback_slots, 5))
        self._lock = threading.Lock()
        self._calls: dict[str, Call] = {}
        self._closed = False
        # When each shard last claimed, counted in claims.
        self._turns: dict[int, int] = {}

    def handle(self, tx: Transaction, received: Sequence[Received]) -> None:
        """A hint: what is called is decided from the rows."""
        for one in received:
            if not isinstance(one.message, CallbackRequested):
                raise Poison(f"a {type(one.message).__name__} does not belong on {one.record.topic}")
        tx.look_at(CALLBACKS)

    def look(self, tx: Transaction, key: str) -> None:  # noqa: ARG002 - there is one key
        """Take back what dead runners left, claim what is due, and find out when the next moment is."""
        with self._lock:
            mine = list(self._calls)
            free = 0 if self._closed else self._settings.callback_slots - len(mine)
        self._take_back(tx, mine)
        if free > 0:
            free -= self._claim(tx, free)
        next_try, next_lapse, now = callbacks.next_moments(tx.conn, tx.partition)
        tx.look_at(CALLBACKS, seconds_to_next(next_try, next_lapse, now, free=free))

    def taken(self, conn: Connection, partition: int) -> Mapping[str, float]:  # noqa: ARG002
        """Look at once: moments may have passed while nobody owned the shard."""
        return {CALLBACKS: 0.0}

    def notified(self, channel: str, payload: str, partitions: Sequence[int]) -> Mapping[int, Mapping[str, float]]:
        """A try of one shard is to be repeated, or a slot is free for any of them."""
        if channel == callbacks.CHANNEL:
            return {p: {CALLBACKS: 0.0} for p in partitions if str(p) == payload}
        in_turn = sorted(partitions, key=lambda p: self._turns.get(p, 0))
        return {p: {CALLBACKS: place * TURN_SECONDS} for place, p in enumerate(in_turn)}

    def close(self) -> None:
        """Take no more, kill what runs, and wait until that is recorded."""
        with self._lock:
            self._closed = True
            calls = list(self._calls.values())
        for call in calls:
            call.stop()
        for call in calls:
            call.join(CLOSE_SECONDS)
        self._engine.dispose()

    def _take_back(self, tx: Transaction, mine: Sequence[str]) -> None:
        """Only an ended lease means that a runner died. One's own calls are alive: they record themselves."""
        for row in callbacks.lock_lapsed(tx.conn, tx.partition, mine):
            id, token, attempts = row["deadline_id"], row["token"], row["attempts"]
            died = Raised("the callback-runner that made the call died", at_once=True)
            match after_try(died, attempts, self._settings.callback_max_attempts):
                case TryAgain(error, seconds):
                    callbacks.try_again(tx.conn, id, token, error, seconds, tx.partition)
                case GiveUp(error) if callbacks.fail(tx.conn, id, token, error):
                    tx.emit(Topic.CALLBACK_EVENTS, id, failed(id, row["name"], attempts, error))

    def _claim(self, tx: Transaction, free: int) -> int:
        """Claim up to ``free`` callbacks, to be called once this has committed; returns how many."""
        claims = [_claim_of(row, tx.partition) for row in callbacks.lock_pending(tx.conn, tx.partition, free)]
        rows = [{"deadline_id": c.deadline_id, "token": c.token, "attempts": c.attempt} for c in claims]
        landed = callbacks.claim(tx.conn, rows, LEASE_SECONDS)
        claims = [claim for claim in claims if claim.deadline_id in landed]
        for claim in claims:
            tx.after_commit.append(partial(self._start, Call(claim, self._settings, self._engine, self._ended)))
        if claims:
            self._turns[tx.partition] = max(self._turns.values(), default=0) + 1
        return len(claims)

    def _start(self, call: Call) -> None:
        with self._lock:
            self._calls[call.claim.token] = call
        call.start()

    def _ended(self, call: Call) -> None:
        with self._lock:
            self._calls.pop(call.claim.token, None)
        self._context.notified(SLOT_FREE, "")


def _claim_of(row: Mapping[str, Any], shard: int) -> Claim:
    """The claim of a pending row, and what its function is told."""
    id, attempt = row["deadline_id"], row["attempts"] + 1
    context = {
        "deadline_id": id,
        # The same for every try, so that the function can tell that it has done its work already.
        "idempotency_key": f"{id}:{row['name']}",
        "attempt": attempt,
        **{
            name: row[name].isoformat() if isinstance(row[name], datetime) else row[name]
            for name in (
                "alert",
                "pipeline",
                "backfill_id",
                "run_id",
                "interval_start",
                "interval_end",
                "reference",
                "due_at",
                "detected_at",
            )
        },
    }
    return Claim(id, shard, row["name"], row["kwargs"], attempt, uuid.uuid4().hex, context)
