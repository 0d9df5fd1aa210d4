"""The runner's handler: claims due callbacks, and reclaims those of dead runners."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import chain

from sqlalchemy import Connection

from callback_runner.call import LEASE_SECONDS, RENEW_SECONDS, Call, Kinds
from callback_runner.decide import (
    Raised,
    after_try,
    max_per_pipeline,
    seconds_to_next,
    take_turns,
    why_not_replayed,
)
from callback_runner.record import Claim, claim_of, close_all, record
from retrofill.system.crash import crash_point
from retrofill_core.bus.faults import Poison
from retrofill_core.bus.handler import RECHECK_SECONDS, Handler, Received, SetAside
from retrofill_core.bus.service import Context
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.deadlines import (
    CallbackReplayed,
    CallbackReplayRejected,
    CallbackReplayRequested,
    CallbackRequested,
)
from retrofill_core.contract.topics import Topic
from retrofill_core.store import callbacks, receivers
from retrofill_core.store.callbacks import Claimed, Pending
from retrofill_core.store.engine import make_engine
from retrofill_core.store.receivers import Outage

# The only check key: the shard's callbacks.
CALLBACKS = "callbacks"
# Channel of the notification that a slot of this instance became free.
SLOT_FREE = "callback_slot"
# Delay between offers of a free slot to the shards; the one that has waited longest is first.
TURN_SECONDS = 0.005
# What waits for its turn is looked at as often, beside the notification that it has come.
IN_ORDER_SECONDS = 5.0
CLOSE_SECONDS = 5.0
# Time for calls to finish at a stop: one that is cut off is repeated, even if it succeeded.
DRAIN_SECONDS = 3.0
# A live runner renews its lease within this time, even if the database's clock steps.
SILENT_SECONDS = RENEW_SECONDS + 1.0


@dataclass(frozen=True)
class _Chosen:
    """Callbacks to claim: ``probes`` of receivers that are down, and those to give up with the ``outages`` of theirs."""

    ids: Sequence[int]
    probes: Collection[int]
    outages: Mapping[int, Outage]


class CallbackHandler(Handler):
    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        self._max_per_pipeline = max_per_pipeline(self._settings.callback_slots)
        self._kinds = Kinds(self._settings, context.installation, context.instance)
        # Calls have their own connections, so shard transactions never wait for one.
        dsn = self._settings.dsn_of(context.service.name)
        self._engine = make_engine(
            dsn,
            f"{context.instance}-calls",
            pool_size=min(self._settings.callback_slots, 5),
            limited=True,
            check=context.check,
        )
        self._lock = threading.Lock()
        self._calls: dict[str, Call] = {}
        self._closed = False
        # When each shard last claimed and each pipeline was last served, in numbers of claims.
        self._turns: dict[int, int] = {}
        self._served: dict[str, int] = {}
        self._claims = 0
        # By shard and token: since when another runner's lease has been over (monotonic).
        self._silent: dict[int, dict[str, float]] = {}
        self._set_aside = SetAside(
            "callback_set_aside", "deadline_id", {"deadline": "deadline_id", "callback": "label"}
        )

    def handle(self, tx: Transaction, received: Sequence[Received]) -> None:
        """Answer replay requests; which callbacks to call is decided from the rows."""
        for one in received:
            match one.message:
                case CallbackRequested():
                    pass  # a hint
                case CallbackReplayRequested():
                    replay(tx, one, one.message)
                case other:
                    raise Poison(f"a {type(other).__name__} does not belong on {one.record.topic}")
        tx.schedule_check(CALLBACKS)

    def check(self, tx: Transaction, keys: Sequence[str]) -> None:  # noqa: ARG002 - there is one key
        """Reclaim callbacks from dead runners, claim due ones, schedule the next check."""
        with self._lock:
            mine = list(self._calls)
            running = Counter(call.claim.pipeline for call in self._calls.values())
            free = 0 if self._closed else self._settings.callback_slots - len(mine)
        reclaim_in = self._reclaim(tx, mine)
        tx.notify(callbacks.CHANNEL, callbacks.end_windows(tx.conn, tx.partition))
        locked_ones = False
        if free > 0:
            claimed, locked_ones = self._claim(tx, running, free)
            free -= len(claimed)
            running.update(claimed)
        full = [pipeline for pipeline, calls in running.items() if calls >= self._max_per_pipeline]
        excluding = self._set_aside.ids()
        down = receivers.waiting(tx.conn, tx.partition, excluding)
        next_tries = [each.ready_at for each in down if not each.probing and each.pipeline not in full]
        next_try = callbacks.next_try(tx.conn, tx.partition, full, excluding, [each.name for each in down])
        next_try = min(filter(None, (next_try, *next_tries)), default=None) if free > 0 else None
        next_lapse, now = callbacks.next_lapse(tx.conn, tx.partition, excluding)
        if down or callbacks.any_behind(tx.conn, tx.partition):
            next_lapse = min(filter(None, (next_lapse, now + timedelta(seconds=IN_ORDER_SECONDS))))
        if reclaim_in is not None:
            next_lapse = now + timedelta(seconds=reclaim_in)
        # What is locked, perhaps by a failure that joins it, is still due: do not ask in a loop.
        tx.schedule_check(
            CALLBACKS, max(seconds_to_next(next_try, next_lapse, now), RECHECK_SECONDS if locked_ones else 0.0)
        )

    def taken(self, conn: Connection, partition: int) -> Mapping[str, float]:  # noqa: ARG002 - nothing is read here
        """Check at once: callbacks may have become due while the shard had no owner."""
        return {CALLBACKS: 0.0}

    def notified(self, channel: str, payload: str, partitions: Sequence[int]) -> Mapping[int, Mapping[str, float]]:
        """A callback of one shard is to be retried, or a slot became free for any shard."""
        if channel == callbacks.CHANNEL:
            return {p: {CALLBACKS: 0.0} for p in partitions if str(p) == payload}
        in_order = sorted(partitions, key=lambda p: self._turns.get(p, 0))
        return {p: {CALLBACKS: place * TURN_SECONDS} for place, p in enumerate(in_order)}

    def close(self) -> None:
        """Claim no more, let calls finish briefly, cut off the rest, and wait for their records."""
        with self._lock:
            self._closed = True
            calls = list(self._calls.values())
        until = time.monotonic() + DRAIN_SECONDS
        for call in calls:
            call.join(max(0.0, until - time.monotonic()))
        for call in calls:
            call.stop()
        for call in calls:
            call.join(CLOSE_SECONDS)
        self._engine.dispose()

    def _reclaim(self, tx: Transaction, mine: Sequence[str]) -> float | None:
        """Record the calls of dead runners as failed; our own (``mine``) record themselves.

        A lease must stay over, by our own clock, for as long as a live runner needs to renew it:
        the database's clock may have stepped. Returns the seconds until that holds for another.
        """
        now, before = time.monotonic(), self._silent.get(tx.partition, {})
        lapsed = callbacks.lock_lapsed(tx.conn, tx.partition, mine, self._set_aside.ids())
        silent = self._silent[tx.partition] = {one.token: before.get(one.token, now) for one in lapsed}
        dead = [one for one in lapsed if now - silent[one.token] >= SILENT_SECONDS]
        self._set_aside.each(tx, dead, self._record_lost)
        left = [since + SILENT_SECONDS - now for since in silent.values() if now - since < SILENT_SECONDS]
        return min(left, default=None)

    def _record_lost(self, tx: Transaction, dead: Sequence[Claimed]) -> None:
        died = Raised("the callback-runner died during the call", at_once=True, uncertain=True)
        for one in dead:
            most = self._settings.callback_max_attempts
            # It says nothing about the receiver: the next call does.
            decision = after_try(died, one.attempts, most, at_most_once=one.at_most_once, patient=one.has_receiver)
            record(tx, replace(one, runners_lost=one.runners_lost + 1), decision, died)

    def _claim(self, tx: Transaction, running: Mapping[str, int], free: int) -> tuple[list[str], bool]:
        """Claim up to ``free`` callbacks, called after the commit.

        Returns their pipelines, and whether others that are due were locked.
        """
        chosen = self._choose(tx, running, free)
        pending = callbacks.lock_pending(tx.conn, chosen.ids)
        # The others already have their event: for them there is nothing to undo.
        collects = any(one.collects or one.newer is not None for one in pending)
        claims_of = partial(_claims_of, outages=chosen.outages)
        claims = list(chain.from_iterable(self._set_aside.each(tx, pending, claims_of, writes=collects)))
        rows = [{"deadline_id": c.deadline_id, "token": c.token, "attempts": c.attempts} for c in claims]
        landed = callbacks.claim(tx.conn, rows, LEASE_SECONDS)
        claims = [claim for claim in claims if claim.deadline_id in landed]
        receivers.probe(
            tx.conn, {claim.name: claim.deadline_id for claim in claims if claim.deadline_id in chosen.probes}
        )
        if claims:
            crash_point("callback:claimed")
            tx.after_commit.append(lambda: crash_point("callback:claim-committed"))
        for claim in claims:
            call = Call(claim, self._settings, self._engine, self._kinds, self._ended)
            tx.after_commit.append(partial(self._start, call))
            self._claims += 1
            self._served[claim.pipeline] = self._turns[tx.partition] = self._claims
        return [claim.pipeline for claim in claims], len(pending) < len(chosen.ids)

    def _choose(self, tx: Transaction, running: Mapping[str, int], free: int) -> _Chosen:
        """What is due, but of those whose receiver is down only one that probes it, and those that are given up."""
        full = [pipeline for pipeline, calls in running.items() if calls >= self._max_per_pipeline]
        set_aside, patience = self._set_aside.ids(), self._settings.callback_patience_seconds
        down = receivers.waiting(tx.conn, tx.partition, set_aside)
        of_each = min(free, self._max_per_pipeline)
        due = callbacks.due(tx.conn, tx.partition, full, of_each, set_aside, [each.name for each in down])
        probes = {each.deadline_id: each for each in down if each.ready and not each.probing}
        over = receivers.expired(tx.conn, tx.partition, patience, free, set_aside) if down else []
        outages = {one.deadline_id: (one, outage) for one, outage in over if one.deadline_id not in probes}
        special = [*(each.due for each in probes.values()), *(one for one, _ in outages.values())]
        due += [one for one in special if one.pipeline not in full]
        ids = take_turns(due, running, self._served, free, self._max_per_pipeline)
        mine = receivers.lock_to_probe(tx.conn, [probes[id].name for id in ids if id in probes])
        return _Chosen(
            ids=[id for id in ids if id not in probes or probes[id].name in mine],
            probes=set(probes),
            outages={id: outage for id, (_, outage) in outages.items()},
        )

    def _start(self, call: Call) -> None:
        with self._lock:
            self._calls[call.claim.token] = call
        call.start()

    def _ended(self, call: Call) -> None:
        with self._lock:
            self._calls.pop(call.claim.token, None)
        self._context.notified(SLOT_FREE, "")


def _claims_of(tx: Transaction, pending: Sequence[Pending], outages: Mapping[int, Outage]) -> list[Claim]:
    return [claim_of(one, tx.partition, outages.get(one.deadline_id)) for one in close_all(tx, pending)]


def replay(tx: Transaction, received: Received, request: CallbackReplayRequested) -> None:
    """Make the callback pending again and reply. Raises ``Poison`` for a wrong key."""
    id = request.deadline_id
    if received.key != str(id):
        raise Poison(f"the key {received.key!r} differs from the callback's id {id}: use the id as the key")
    newer = None if request.force else callbacks.newer_delivered(tx.conn, id)
    replayed = callbacks.replay(tx.conn, id) if newer is None else None
    if replayed is None:
        why = why_not_replayed(callbacks.state_of(tx.conn, id), newer)
        rejected = CallbackReplayRejected(deadline_id=id, message=f"callback {id}: {why}")
        tx.emit(Topic.CALLBACK_EVENTS, id, rejected, reply_to=received.record)
        return
    answer = CallbackReplayed(
        deadline_id=id,
        callback=replayed.label,
        kind=replayed.kind,
        occasion=replayed.occasion,
        backfill_id=replayed.backfill_id,
    )
    tx.emit(Topic.CALLBACK_EVENTS, id, answer, reply_to=received.record)
