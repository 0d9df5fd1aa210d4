"""Mutations of hosts and their seats."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, update

from retrofill_core.store import attempts, hosts
from retrofill_core.store.hosts import Offer, Seat
from retrofill_core.store.tables import host, seat
from run_starter.host.launching import Launching
from tests.simulation.mutations.patch import Patch
from tests.simulation.pools import POOLS


def launched_again(patch: Patch) -> None:
    """A host launches each attempt that it finds in its seats, however often."""
    patch(Launching, "first", lambda self, attempt_id: not self.known.clear())


def taken_over_without_acknowledgement(patch: Patch) -> None:
    """A host launches what it finds in its seats without acknowledging it."""
    patch(hosts, "acknowledge", lambda conn, id, attempt_id: True)


def renewals_are_assumed(patch: Patch) -> None:
    """While Kafka is away, a host tells its drivers that their leases are renewed, whatever Postgres says."""
    patch(attempts, "renew", lambda conn, ids, own: list(ids))


def taken_seats_are_taken_again(patch: Patch) -> None:
    """A claim takes any warm seat, and does not look whether it is free."""
    insert_all = attempts.insert_all

    def lock_any(conn: Any, own: Any, shard: int, pool: str, executors: Any, most: int) -> Offer:
        columns = (seat.c.host_id, seat.c.no, host.c.name, seat.c.warm, host.c.submits, host.c.pool)
        of_pool = select(*columns).join(host, host.c.id == seat.c.host_id).where(seat.c.warm, host.c.pool == pool)
        rows = conn.execute(of_pool).all()
        return Offer([Seat(*row) for row in rows][:most], len(rows))

    def insert_over(conn: Any, new: Any, *more: Any) -> Any:
        for one in new:
            mine = (seat.c.host_id == one.host_id) & (seat.c.no == one.seat)
            conn.execute(update(seat).where(mine).values(attempt_id=None, acknowledged_at=None))
        return insert_all(conn, new, *more)

    patch(hosts, "lock_free", lock_any)
    patch(attempts, "insert_all", insert_over)


def seats_of_any_pool(patch: Patch) -> None:
    """A claim takes the free seats of all hosts, whatever pool they serve."""
    lock_free = hosts.lock_free

    def lock_all(conn: Any, own: Any, shard: int, pool: str, executors: Any, most: int) -> Offer:
        offers = [lock_free(conn, own, shard, each, executors, most) for each in sorted(POOLS)]
        return Offer([each for offer in offers for each in offer.seats][:most], sum(o.total or 0 for o in offers))

    patch(hosts, "lock_free", lock_all)


def unheard_counts(patch: Patch) -> None:
    """An attempt that its host never took over is lost like one that may have begun."""
    patch(hosts, "unacknowledged", lambda conn, ids: set())


def seats_are_not_freed(patch: Patch) -> None:
    """An attempt that ended keeps its seat."""
    patch(hosts, "free", lambda conn, attempts: None)
