"""One simulated installation: servers, service replicas, clients, drivers and faults."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from callback_runner.record import Claim
from retrofill.protocol.launch import LaunchedRun
from retrofill_core.contract.base import Message
from retrofill_core.contract.topics import CALLBACK_RUNNER, PLANNER, RUN_STARTER, SERVICES, WATCHER, Service, Topic
from retrofill_core.settings import Settings
from retrofill_core.store.tables import SERVICE_TABLES
from run_starter.executors import LaunchRequest
from tests.simulation import primitives, sizes
from tests.simulation.bus.broker import Broker, Entry, Headers, ce_id_of
from tests.simulation.bus.groups import Group
from tests.simulation.drivers import Driver
from tests.simulation.memory.engine import IDLE_SECONDS, Database
from tests.simulation.oracle import Oracle
from tests.simulation.places import Places
from tests.simulation.pools import Pools
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.servers import Servers, body_of, wire
from tests.simulation.services import Instance

SESSION_SECONDS = 6.0
# ``lock_timeout`` of the services' roles.
LOCK_SECONDS = 1.0
ALL = (PLANNER, RUN_STARTER, WATCHER, CALLBACK_RUNNER)


@cache
def _settings() -> Settings:
    return Settings(
        kafka_bootstrap_servers="simulated",
        postgres_dsn="dbname=simulated",
        spark_remote="sc://simulated",
        topic_prefix="",
        driver_slots=2,
        callback_slots=2,
        max_lost_attempts=5,
    )


class World:
    """The state of one schedule. Use it inside ``shims.exchanged()``."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        random.seed(seed)
        primitives.running(self.scheduler)
        self.random = self.scheduler.random
        self.size = sizes.choose(self.random)
        self.pools = Pools(seed)
        self.partitions = self.random.choice(self.size.partitions)
        self.settings = _settings().model_copy(
            update={
                "partitions": self.partitions,
                "lease_seconds": self.random.choice(self.size.lease_seconds),
                "batch_messages": self.random.choice([1, 3, 20]),
                "drain_seconds": self.random.choice([0.0, 3.0, 20.0]),
                "driver_start_seconds": self.random.choice([1.0, 60.0]),
            }
        )
        # Many schedules have no deadlines, which makes them shorter.
        self.services = ALL if self.random.random() < self.size.with_deadlines else ALL[:2]
        # How long a call takes at most; above 7, some are cut off.
        self.call_seconds = 8.0
        # How long a new driver process takes to start, at most.
        self.start_seconds = self.random.choice([0.2, 2.0, 8.0])
        self.duplicates = self.lost_notifications = self.lost_answers = self.failing_calls = self.late = self.slow = 0.0
        # Replicas may have different lease settings, as during a rolling restart with a changed
        # setting.
        self.leases: tuple[float, ...] = (self.settings.lease_seconds,)
        self.database = Database(self.scheduler, LOCK_SECONDS)
        marker_seconds = self.random.choice([0.001, 0.05, 0.5])
        self.broker = Broker(self.scheduler, lambda: self.random.random() * marker_seconds)
        self._create_topics()
        self._create_rows()
        self.servers = Servers(self)
        # Poison messages by ce_id: key and value.
        self.poison: dict[str, tuple[bytes | None, bytes | None]] = {}
        # Messages from services that became unreadable, by ce_id.
        self.lost: dict[str, bytes] = {}
        self.oracle = Oracle(self)
        self.places = Places(self)
        self.instances: list[Instance] = []
        self.drivers: list[Driver] = []
        self.at_work: list[Driver] = []
        # Services of which an instance crashed, and when.
        self.crashes: list[tuple[str, float]] = []
        self.calling: list[Process] = []  # callback runners, once per call in progress
        self.receivers_back_at = 0.0  # until then no webhook arrives
        self.receivers_hang = seed % 3 == 0  # they answer nothing, instead of an error
        self.failing: set[tuple[str, Any]] = set()  # (pipeline, interval start) that fails
        self.refusing: set[tuple[str, Any]] = set()  # those of which the table refuses the output for ever
        self.put_off = 0.0  # how often a table cannot be published now
        self.requested: dict[str, set[Any]] = {}  # logical dates by backfill id
        self.fixed: set[tuple[str, Any]] = set()  # those of them whose code was fixed meanwhile
        self.killing: set[tuple[str, Any]] = set()  # those that end the Spark server each time
        self.hanging: set[tuple[str, Any]] = set()  # those whose user code does not end
        self.healed_at: float | None = None
        self.spark_back_at = 0.0
        self.has_bugs = False  # on purpose: exceptions of the services' own code are no violation
        self.injected: Counter[str] = Counter()
        self.waiting_for_kafka = 0  # client messages that Kafka has not accepted yet
        self.published: dict[str, int] = {}  # ce_id → how often it was published
        self.calls, self.calls_done = Counter[int](), Counter[int]()
        self._numbers: Counter[str] = Counter()

    def _create_topics(self) -> None:
        for topic in Topic:
            self.broker.create(str(topic), self.partitions)
        for service in SERVICES.values():
            self.broker.create(service.cursor_topic(""), 1)
            topics = [str(topic) for topic in service.reads]
            self.broker.groups[service.group("")] = Group(topics, self.partitions, self.random)
            self.broker.groups[service.relay_id("")] = Group([service.cursor_topic("")], 1, self.random)

    def _create_rows(self) -> None:
        tx = self.database.begin("init")
        for service in SERVICES.values():
            own = SERVICE_TABLES[service.package]
            for partition in range(self.partitions):
                self._put(tx, own.shard.name, {"partition": partition})
            self._put(tx, own.relay.name, {})
        self.database.commit(tx)

    def _put(self, tx: Any, table: str, values: Mapping[str, Any]) -> None:
        self.database.tables[table].insert(tx, dict(values), skip=lambda _: False)

    # services and clients

    def start(self, service: Service, serves: Sequence[str] = ()) -> Instance:
        """Start another replica. A run-starter ``serves`` these pools, or some."""
        self._numbers[service.name] += 1
        instance = Instance(self, service, self._numbers[service.name], serves or self.pools.served())
        self.instances.append(instance)
        return instance

    def alive(self, service: Service | None = None) -> list[Instance]:
        """Live replicas, of one service or of all."""
        return [i for i in self.instances if i.process.alive and (service is None or i.service is service)]

    def is_disturbed(self) -> bool:
        """Whether a process is frozen or cut off and will resume."""
        processes = [each.process for each in self.alive()] + [each.process for each in self.drivers]
        stands_still = any(process.alive and (process.frozen or process.cut) for process in processes)
        return stands_still or self.servers.is_disturbed()

    def publish(self, topic: Topic, key: str, message: Message, *, partition: int | None = None, times: int = 1) -> str:
        """Publish a client's message; returns its ``ce_id``."""
        headers = wire(message, "client")
        for _ in range(times):
            self.append(str(topic), key.encode(), message.encode(), headers, partition=partition)
        ce_id = (dict(headers)["ce_id"] or b"").decode()
        self.published[ce_id] = times
        return ce_id

    def append(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, *, partition: int | None = None
    ) -> None:
        """Append a client's message, retrying until Kafka accepts it."""
        if self.broker.down:
            later = self.scheduler.now + 0.5
            self.waiting_for_kafka += 1

            def again() -> None:
                self.waiting_for_kafka -= 1
                self.append(topic, key, value, headers, partition=partition)

            self.scheduler.at(later, again)
            return
        self.broker.append(topic, key, value, headers, partition=partition)

    def is_poison(self, entry: Entry) -> bool:
        return ce_id_of(entry) in self.poison

    def body(self, entry: Entry) -> dict[str, Any]:
        """The message's JSON object, or an empty one if it is poison."""
        return body_of(self.lost.get(ce_id_of(entry), entry.value))

    # reported by drivers and callback targets

    def fails(self, launch: LaunchRequest, run: LaunchedRun) -> bool:
        """Whether user code fails for this interval. An undo has none."""
        return run.restores is None and (launch.pipeline.name, run.interval_start) in self.failing - self.fixed

    def kills(self, launch: LaunchRequest, run: LaunchedRun) -> bool:
        """Whether user code ends the Spark server for this interval."""
        return run.restores is None and (launch.pipeline.name, run.interval_start) in self.killing

    def hangs(self, launch: LaunchRequest, run: LaunchedRun) -> bool:
        """Whether user code does not end by itself for this interval."""
        return run.restores is None and (launch.pipeline.name, run.interval_start) in self.hanging

    def stages(self, runs: Sequence[LaunchedRun]) -> bool:
        """Whether runs that are executed at once stage their outputs: every second time, and all that undo others."""
        return runs[0].restores is not None or runs[0].id % 2 == 0

    def published_now(self, runs: Sequence[LaunchedRun]) -> int:
        """How many of these outputs can be published now, in order. Once the faults are over, all can."""
        if self.healed_at is not None or self.random.random() >= self.put_off:
            return len(runs)
        return self.random.randrange(len(runs))

    def refuses(self, launch: LaunchRequest, run: LaunchedRun) -> bool:
        """Whether a table refuses the output of this interval for ever."""
        return (launch.pipeline.name, run.interval_start) in self.refusing

    def working(self, driver: Driver, runs: Sequence[LaunchedRun]) -> None:
        """User code starts; no other attempt may still be at work on these runs."""
        driver.at_runs = frozenset(run.id for run in runs)
        for run in runs:
            self.oracle.attempts.began(driver, run, self.at_work)
        self.at_work.append(driver)

    def worked(self, driver: Driver) -> None:
        """User code ended, whatever the outcome."""
        self.at_work.remove(driver)

    def called(self, claim: Claim) -> None:
        """The callback's target received a call."""
        self.calls[claim.deadline_id] += 1
        self.oracle.callbacks.called(claim)
        self.oracle.listed.called(claim)

    def done(self, claim: Claim) -> None:
        """The callback's target finished the call."""
        self.calls_done[claim.deadline_id] += 1

    # faults

    def crash(self, instance: Instance, *, machine: bool) -> None:
        """``kill -9``. With ``machine``, the servers keep its sessions for a while."""
        instance.lingers = machine
        self.crashes.append((instance.service.name, self.scheduler.now))
        for driver in instance.drivers:
            # Others outlive their host, for as long as it takes them to notice.
            if self.random.random() < 0.6:
                self.scheduler.kill(driver.process)
        self.scheduler.kill(instance.process)

    def end_spark(self, seconds: float = 0.0, pool: str | None = None) -> None:
        """End the Spark server of a pool, or of all, and every session on it. Publishers need none."""
        self.spark_back_at = max(self.spark_back_at, self.scheduler.now + seconds)
        for driver in [each for each in self.drivers if each.process.alive and each.uses_spark]:
            if pool in (None, driver.launch.pipeline.pool):
                driver.lose_spark()

    def freeze(self, instance: Instance, seconds: float) -> None:
        """Freeze a process; the servers time out its sessions."""
        process = instance.process
        process.frozen = True
        now = self.scheduler.now
        for tx in [tx for tx in self.database.open if tx.who == process.name]:
            self.scheduler.at(now + IDLE_SECONDS + 0.001, lambda tx=tx: self._idle(tx))  # type: ignore[misc]
        if seconds > SESSION_SECONDS:
            self.scheduler.at(now + SESSION_SECONDS, lambda: self._expel(instance))
        self.scheduler.at(now + seconds, lambda: self._thaw(instance))

    def _idle(self, tx: Any) -> None:
        if not tx.over and not tx.waits_for and self.scheduler.now - tx.last_active > IDLE_SECONDS:
            self.database.terminate(tx)

    def _thaw(self, instance: Instance) -> None:
        instance.process.frozen = False

    def cut(self, instance: Instance, seconds: float) -> None:
        """Cut a process off from Kafka only: its partitions move without its knowledge."""
        instance.process.cut = True
        now = self.scheduler.now
        if seconds > SESSION_SECONDS:
            self.scheduler.at(now + SESSION_SECONDS, lambda: self._expel(instance))
        self.scheduler.at(now + seconds, lambda: self._heal(instance))

    def _heal(self, instance: Instance) -> None:
        instance.process.cut = False
        self.broker.woken()

    def _expel(self, instance: Instance) -> None:
        if not (instance.process.frozen or instance.process.cut) or not instance.process.alive:
            return
        for group in self.broker.groups.values():
            for member in [m for m in group.members if m.name == instance.name]:
                group.leave(member)
        self.broker.woken()

    def rebalance(self, service: Service | None = None) -> None:
        """Move partitions of a service, or its relay."""
        service = service or self.random.choice(self.services)
        self.broker.groups[self.random.choice([service.group(""), service.relay_id("")])].rebalance()
        self.broker.woken()

    def heal(self) -> None:
        """End all faults and make sure that each service has a replica."""
        self.healed_at = self.scheduler.now
        self.receivers_back_at = 0.0
        self.duplicates = self.lost_notifications = self.lost_answers = self.failing_calls = self.late = self.slow = 0.0
        for instance in self.alive():
            instance.process.frozen = instance.process.cut = False
            instance.process.lost_answers = 0.0  # type: ignore[attr-defined]
        for driver in self.drivers:
            driver.process.frozen = driver.process.cut = False
        self.servers.heal()
        for service in self.services:
            if not self.alive(service):
                self.start(service)
        left = [each.serves for each in self.alive(RUN_STARTER) if not each.stopping]
        if unserved := self.pools.unserved(left):
            self.start(RUN_STARTER, unserved)

    def close(self) -> None:
        self.scheduler.close()
        primitives.running(None)
