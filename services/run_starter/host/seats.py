"""This replica as a host of each pool that it serves: its leases, its seats, and the attempts that it is given.

Other replicas own the shards of those attempts. They choose a seat and say so; only this
incarnation acknowledges the attempt, and launches it once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill.system.crash import crash_point
from retrofill_core.bus import metrics
from retrofill_core.bus.notifications import announce
from retrofill_core.contract.runs import AttemptEnded, AttemptHeartbeat, ErrorInfo
from retrofill_core.pools import settings_of
from retrofill_core.settings import Settings
from retrofill_core.store import hosts
from retrofill_core.store.engine import reading
from retrofill_core.store.hosts import Mine
from retrofill_core.store.rows import present
from run_starter.executors import Condition, Executor, Key
from run_starter.host.hosting import DriverHost
from run_starter.host.launching import Launching

log = get_log(__name__)
POLL_SECONDS = 1.0
LEAVE_SECONDS = 5.0
# A lease is renewed when a fifth of it has passed.
SHARE = 5


@dataclass
class PoolSeats:
    """The seats of one pool. ``start_seconds``: how long a launch waits for its driver."""

    pool: str
    executor: Executor
    count: int
    start_seconds: float
    # The incarnation; none before the first contact with Postgres.
    id: int | None = None
    # Free seats without a driver, as of the last step.
    cold: int = 0
    # When the lease was renewed, and what was said then.
    renewed: tuple[float, Condition | None] = (0.0, None)
    # Since when launches have been waiting for their driver, and the last heartbeat for them.
    waiting: dict[Key, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cold = self.count


class Seats(threading.Thread):
    """Keeps the host's rows up to date, one of each pool. Its thread ends with ``leave``."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        settings: Settings,
        host: DriverHost,
        launching: Launching,
        executors: Mapping[str, Executor],
        logs: str | None = None,
    ) -> None:
        """``launching``: with definitions of its own, because another thread reads them.

        ``executors``: by pool. ``logs``: the URL of the attempts' logs.
        """
        super().__init__(name="seats", daemon=True)
        self._engine = engine
        self._name = name
        self._logs = logs
        # Not shorter than it takes to renew it a few times.
        self._lease = max(settings.lease_seconds, SHARE * POLL_SECONDS)
        self._host = host
        self._launching = launching
        self._pools: list[PoolSeats] = []
        for pool, executor in executors.items():
            own = settings_of(settings, pool)
            self._pools.append(PoolSeats(pool, executor, own.driver_slots, own.driver_start_seconds))
        self._draining = False
        self._stopping = threading.Event()

    @property
    def ids(self) -> list[int]:
        """The ids of this host, one for each pool as soon as that is registered."""
        return [each.id for each in self._pools if each.id is not None]

    def wake(self) -> None:
        """A seat was taken, or the drivers changed."""
        self._host.drivers_changed.set()

    def counts(self) -> dict[str, float]:
        """Number of seats by state, from any thread."""
        found = {"free": 0.0, "busy": 0.0, "cold": 0.0}
        for each in self._pools:
            busy = len(each.executor.hosted())
            found["free"] += max(0, each.count - each.cold - busy)
            found["busy"] += busy
            found["cold"] += each.cold
        return found

    def drain(self) -> None:
        """Take nothing new: free seats go at once, the others once they are free."""
        self._draining = True
        self.wake()

    def leave(self) -> None:
        """Give up the leases, and end the thread."""
        self._stopping.set()
        self.wake()
        self.join(LEAVE_SECONDS)
        try:
            for id in self.ids:
                with self._engine.begin() as conn:
                    hosts.renew(conn, id, 0.0, submits=False, note="stopped")
        except SQLAlchemyError as e:
            log.warning("host_not_left", error=first_line(e))

    def run(self) -> None:
        """Work when woken, and every second."""
        woken = self._host.drivers_changed
        woken.set()
        while True:
            woken.wait(POLL_SECONDS)
            woken.clear()
            if self._stopping.is_set():
                return
            # Apart from what needs Postgres, because heartbeats go to Kafka only.
            for each in self._pools:
                _guarded(self._speak_for_waiting, each)
            _guarded(self._step)

    def _step(self) -> None:
        ids = [self._keep_lease(each, each.executor.condition()) for each in self._pools]
        # Before the read: what was handed over by now, and has no seat there, has none any more.
        known = set(self._launching.known)
        with reading(self._engine) as conn:
            rows = hosts.seats_of(conn, ids)
        self._launching.forget(known - {row.attempt_id for row in rows})
        for row in rows:
            if row.attempt_id is not None:
                self._take_over(row, row.attempt_id)
        for each, id in zip(self._pools, ids, strict=True):
            if self._draining:
                with self._engine.begin() as conn:
                    hosts.withdraw(conn, id)
            else:
                mine = [row for row in rows if row.host_id == id]
                self._make_missing(each, id, mine)
                self._set_warm(each, id, mine)

    def _keep_lease(self, of: PoolSeats, condition: Condition) -> int:
        """Renew the lease of a pool's host, or become a new incarnation."""
        now = time.monotonic()
        at, before = of.renewed
        about = replace(condition, room=0)
        if of.id is not None and now - at < self._lease / SHARE and before == about:
            return of.id
        submits = condition.submits and not self._draining
        with self._engine.begin() as conn:
            id = of.id
            if id is None or not hosts.renew(
                conn,
                id,
                self._lease,
                submits=submits,
                note=condition.note,
                python=condition.python,
                spark=condition.spark,
            ):
                register = partial(hosts.register, conn, self._name, of.count, self._lease, logs=self._logs)
                id = register(submits=submits, note=condition.note, pool=of.pool)
        if id != of.id:
            log.info("host_registered", host=id, pool=of.pool, seats=of.count)
        of.id, of.renewed = id, (now, about)
        if submits and before is not None and not before.submits:
            announce([(hosts.SEAT_CHANNEL, of.pool)])
        return id

    def _take_over(self, row: Mine, attempt_id: int) -> None:
        """Launch an attempt that is new here."""
        acknowledged = row.acknowledged_at is not None
        if attempt_id in self._launching.known or (acknowledged and not row.overdue):
            return
        if self._draining:
            self._release(present(row.backfill_id), attempt_id, "its host stops")
            return
        # An acknowledged one that is unknown here: the commit's answer was lost.
        if not acknowledged:
            with self._engine.begin() as conn:
                acknowledged = hosts.acknowledge(conn, row.host_id, attempt_id)
        if not acknowledged:
            return
        crash_point("host:acknowledged")
        with self._engine.connect() as conn:
            launch = self._launching.derive(conn, attempt_id)
        if launch is None:
            self._release(
                present(row.backfill_id), attempt_id, "its host cannot read its definition, which a newer release wrote"
            )
        else:
            metrics.RUNS_CLAIMED.inc(len(launch.runs))
            self._launching.hand_over([launch])

    def _release(self, backfill_id: str, attempt_id: int, why: str) -> None:
        """Leave an attempt that nothing was done for to another host."""
        if self._launching.first(attempt_id):
            error = ErrorInfo(type="DriverLost", message=why)
            self._host.report(
                AttemptEnded(backfill_id=backfill_id, attempt_id=attempt_id, state="released", error=error)
            )

    def _make_missing(self, of: PoolSeats, id: int, rows: Sequence[Mine]) -> None:
        """Make the seats again that another host deleted because this one seemed to be long dead."""
        if missing := set(range(1, of.count + 1)).difference(row.no for row in rows):
            log.warning("seats_made_again", host=id, pool=of.pool, seats=len(missing))
            with self._engine.begin() as conn:
                hosts.make_seats(conn, id, sorted(missing))

    def _set_warm(self, of: PoolSeats, id: int, rows: Sequence[Mine]) -> None:
        changes = warmed(rows, of.executor.condition().room)
        for no, warm in changes.items():
            with self._engine.begin() as conn:
                hosts.set_warm(conn, id, no, warm=warm)
        of.cold = sum(not changes.get(row.no, row.warm) for row in rows if row.attempt_id is None)
        if any(changes.values()):
            announce([(hosts.SEAT_CHANNEL, of.pool)])

    def _speak_for_waiting(self, of: PoolSeats) -> None:
        """Send heartbeats for launches that wait for their driver; give up those that do so too long."""
        now = time.monotonic()
        waiting = {launch.key: launch for launch in of.executor.waiting()}
        of.waiting = {key: of.waiting.get(key, (now, now)) for key in waiting}
        for key, (since, beat) in of.waiting.items():
            launch = waiting[key]
            if now - since > of.start_seconds:
                log.warning("driver_does_not_start", attempt=key, seconds=now - since)
                of.executor.end(key)
            elif now - beat >= launch.lease_seconds / SHARE:
                self._host.report(AttemptHeartbeat(**launch.about, sent_at=datetime.now(UTC)))
                of.waiting[key] = (since, now)


def _guarded(work: Callable[..., None], *about: PoolSeats) -> None:
    """Do it; if it fails, log why."""
    try:
        work(*about)
    except (SQLAlchemyError, OSError) as e:
        log.warning("host_waits", error=first_line(e))
    except Exception:
        # Without this thread, the host would be given nothing more.
        log.exception("host_failed")


def warmed(rows: Sequence[Mine], room: int) -> dict[int, bool]:
    """The free seats to make warm or cold, by number: as many are warm as have a driver.

    A driver that executes an attempt without a seat has reported its end, and is about to be free.
    """
    free = [row for row in rows if row.attempt_id is None]
    keep = max(0, room - (len(rows) - len(free)))
    # The warm ones first, so that few change.
    in_order = sorted(free, key=lambda row: (not row.warm, row.no))
    return {row.no: n < keep for n, row in enumerate(in_order) if row.warm != (n < keep)}
