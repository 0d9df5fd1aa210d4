"""Well-meant simplifications of the services' code, each of which breaks something: the simulation has to find them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sqlalchemy import select, update

import run_starter.reports
from backfill_planner import handler as planner
from backfill_planner.handler import PlannerHandler
from retrofill.bus import loop, outbox, transaction
from retrofill.bus.relay import Batch, Relay
from retrofill.domain.callback import CallbackState
from retrofill.store import backfills, callbacks
from retrofill.store import runs as store
from retrofill.store.clock import database_now
from retrofill.store.tables import SERVICE_TABLES, callback
from run_starter import decide
from run_starter.hosting import DriverHost
from run_starter.leases import Leases
from tests.simulation import shims

Patch = Callable[[Any, str, Any], None]


def no_epoch_assertion(patch: Patch) -> None:
    """A transaction of a shard does not assert its owner's epoch."""
    patch(transaction, "assert_epoch", lambda conn, service, partition, epoch: None)


def no_offset_comparison(patch: Patch) -> None:
    """Consumed offsets are set, whatever they were, and nobody asserts an epoch."""

    def move(conn: Any, service: Any, partition: int, moves: Mapping[str, Any]) -> None:
        table = SERVICE_TABLES[service.package].offset
        for each in moves.values():
            where = (table.c.partition == partition) & (table.c.topic == each.topic)
            conn.execute(update(table).where(where).values(next_offset=each.new))

    patch(loop, "move_offsets", move)
    patch(transaction, "assert_epoch", lambda conn, service, partition, epoch: None)


def no_attempt_guard(patch: Patch) -> None:
    """A report counts for whatever attempt is the live one."""
    fold = decide.fold

    def fold_any(reports: Sequence[Any], runs: Mapping[int, Any], tasks: Any, most: int) -> Any:
        return fold([r.model_copy(update={"attempt": runs[r.run_id].attempt}) for r in reports], runs, tasks, most)

    patch(run_starter.reports, "fold", fold_any)


def batches_without_epoch(patch: Patch) -> None:
    """The relay numbers batches without asserting its epoch."""

    def state(self: Any, conn: Any) -> Any:
        relay = self._own.relay
        return conn.execute(select(relay.c.batch, relay.c.batch_ids).with_for_update(key_share=True)).mappings().first()

    def number(self: Any, conn: Any, state: Any, *, last: int) -> Batch | None:
        relay = self._own.relay
        rows = self._rows(conn, outbox.take(conn, self._own, self._limit, 1_000_000_000, []))
        if not rows and not state["batch_ids"] and last == state["batch"]:
            return None
        new = last + 1 if rows else last
        conn.execute(update(relay).values(batch=new, batch_ids=[row["id"] for row in rows]))
        return Batch(new, rows) if rows else None

    patch(Relay, "_assert_epoch", state)
    patch(Relay, "_number", number)


def unknown_batch_is_dropped(patch: Patch) -> None:
    """The relay takes a batch that was numbered for one that was published."""
    recover = Relay._recover

    def recovered(self: Any, cursor: int) -> Batch | None:
        with self._engine.begin() as conn:
            cursor = self._assert_epoch(conn)["batch"]
        return recover(self, cursor)

    patch(Relay, "_recover", recovered)


def unknown_batch_is_resent(patch: Patch) -> None:
    """The relay resends the last batch without asking whether it was published."""
    patch(Relay, "_read_cursor", lambda self: 0)


def ends_by_counting(patch: Patch) -> None:
    """A backfill is complete when as many ends of runs were read as it has runs."""

    def ended() -> Counter[str]:
        process: Any = shims.scheduler().me().process
        found: Counter[str] = process.__dict__.setdefault("ended", Counter())
        return found

    remember = planner._remember

    def count(tx: Any, one: Any) -> None:
        if type(one.message).__name__ in ("RunSucceeded", "RunFailed", "RunCancelled"):
            ended()[one.key] += 1
        remember(tx, one)

    progress = backfills.progress

    def by_count(conn: Any, row: Any) -> Any:
        return replace(progress(conn, row), any_unfinished=ended()[row["id"]] < row["runs"])

    patch(planner, "_remember", count)
    patch(backfills, "progress", by_count)
    patch(backfills, "to_be_decided", backfills.still_active)


def no_looks_at_takeover(patch: Patch) -> None:
    """Who takes a shard over looks at nothing by itself."""
    patch(PlannerHandler, "taken", lambda self, conn, partition: {})


def leases_by_the_clock(patch: Patch) -> None:
    """A lease ends by the clock alone, however many heartbeats are unread."""

    def look(self: Any, tx: Any) -> None:
        now = database_now(tx.conn)
        self._expire(tx, store.expired(tx.conn, tx.partition, now), now)
        tx.look_at("leases", 0.5)

    patch(Leases, "look", look)


def begins_without_asking(patch: Patch) -> None:
    """A driver begins without reading again whether its attempt is the live one."""
    patch(DriverHost, "may_begin", lambda self, launch: True)


def claims_beyond_limits(patch: Patch) -> None:
    """A claim does not count what the other backfills of the pipeline have."""
    rooms = store.rooms

    def lonely(conn: Any, pipeline_of: Any, limits: Any) -> Any:
        return rooms(conn, pipeline_of, {no: limit + 1 for no, limit in limits.items()})

    patch(store, "rooms", lonely)


def callbacks_without_leases(patch: Patch) -> None:
    """Who looks at callbacks takes back those of others at once."""
    lapsed = callbacks.lock_lapsed

    def at_once(conn: Any, shard: int, but: Any) -> Any:
        table = callback
        running = (table.c.shard == shard) & (table.c.state == str(CallbackState.RUNNING))
        conn.execute(update(table).where(running).values(lease_until=database_now(conn)))
        return lapsed(conn, shard, but)

    patch(callbacks, "lock_lapsed", at_once)


def callbacks_without_tokens(patch: Patch) -> None:
    """What a call came to is recorded whoever's claim it is by now."""
    leave = callbacks._leave

    def any_token(conn: Any, to: Any, deadline_id: int, token: str, values: Any) -> bool:
        c = callback.c
        now = conn.execute(select(c.token).where(c.deadline_id == deadline_id)).scalar()
        return leave(conn, to, deadline_id, now or token, values)

    patch(callbacks, "_leave", any_token)


def messages_before_commit(patch: Patch) -> None:
    """Offsets move in a transaction of their own, before the effect."""
    apply = loop.Loop._apply

    def early(self: Any, shard: Any, work: Any) -> None:
        with self._transaction(shard) as tx:
            transaction.move_offsets(tx.conn, self._service, shard.partition, work.moves)
        moves = {topic: replace(move, old=move.new) for topic, move in work.moves.items()}
        if work.records:
            apply(self, shard, replace(work, moves=moves))

    patch(loop.Loop, "_apply", early)


MUTATIONS: dict[str, Callable[[Patch], None]] = {
    mutation.__name__: mutation
    for mutation in (
        no_epoch_assertion,
        no_offset_comparison,
        no_attempt_guard,
        batches_without_epoch,
        unknown_batch_is_dropped,
        unknown_batch_is_resent,
        ends_by_counting,
        no_looks_at_takeover,
        leases_by_the_clock,
        begins_without_asking,
        claims_beyond_limits,
        callbacks_without_leases,
        callbacks_without_tokens,
        messages_before_commit,
    )
}


@contextmanager
def applied(name: str) -> Iterator[None]:
    """The services' code with the mutation ``name`` meanwhile."""
    before: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, attribute: str, instead: Any) -> None:
        before.append((owner, attribute, owner.__dict__[attribute]))
        setattr(owner, attribute, instead)

    MUTATIONS[name](patch)
    try:
        yield
    finally:
        for owner, attribute, value in reversed(before):
            setattr(owner, attribute, value)
