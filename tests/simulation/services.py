"""Service replicas: real handlers, loop, poller and relay, wired as by ``bus.service``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from backfill_planner.handler import PlannerHandler
from callback_runner.handler import CallbackHandler
from deadline_watcher.handler import WatcherHandler
from retrofill_core.bus.faults import Fault, classify
from retrofill_core.bus.handler import Handler
from retrofill_core.bus.inbox import Inbox, Notified, Wake
from retrofill_core.bus.poller import Poller
from retrofill_core.bus.relay.relay import Relay
from retrofill_core.bus.service import Context
from retrofill_core.bus.takeover import TopicIds
from retrofill_core.bus.worker.context import WorkerContext
from retrofill_core.bus.worker.loop import Loop
from retrofill_core.contract.topics import CALLBACK_RUNNER, PLANNER, RUN_STARTER, WATCHER, Service
from retrofill_core.pools import settings_of
from retrofill_core.store import callbacks, outbox
from run_starter.handler import CHANNELS, StarterHandler
from tests.simulation.bus.connections import Connections
from tests.simulation.callbacks import SimulatedKinds
from tests.simulation.drivers import Driver
from tests.simulation.executor import SimulatedExecutor
from tests.simulation.memory.engine import MemoryEngine
from tests.simulation.pools import POOLS
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

_CHANNELS = {RUN_STARTER.name: CHANNELS, CALLBACK_RUNNER.name: (callbacks.CHANNEL,)}


class Instance:
    def __init__(self, world: World, service: Service, number: int, serves: Sequence[str]) -> None:
        self.world = world
        self.service = service
        self.name = f"{service.name}-{number}"
        self.process: Process = world.scheduler.process(self.name)
        self.process.connections = Connections(world.scheduler, world.broker, self.process)  # type: ignore[attr-defined]
        self.process.lost_answers = world.lost_answers  # type: ignore[attr-defined]
        self.process.make_engine = self._engine  # type: ignore[attr-defined]
        self.process.kinds = SimulatedKinds(world, self.process)  # type: ignore[attr-defined]
        lease = world.random.choice(world.leases)
        # The pools that a run-starter serves.
        self.serves = serves
        more = {"lease_seconds": lease, "pools": POOLS, "serves": serves}
        self.settings = world.settings.model_copy(update=more)
        self.process.settings = self.settings  # type: ignore[attr-defined]
        # Whether the machine fails with the process. The server then keeps the sessions until they
        # time out.
        self.lingers = False
        self.loop: Loop | None = None
        self._inbox: Inbox | None = None
        self.stopping = False
        # By pool.
        self.executors: dict[str, SimulatedExecutor] = {}
        # Called when the notification connection is reopened: some notifications may be lost.
        self.listens_again: Callable[[], None] = lambda: None
        world.scheduler.spawn(self.process, "worker", self._run)

    @property
    def drivers(self) -> list[Driver]:
        """Its drivers of all pools."""
        return [driver for executor in self.executors.values() for driver in executor.drivers.values()]

    def _run(self) -> None:
        world, service = self.world, self.service
        engine = self._engine()
        topic_ids = TopicIds(world.settings, service, self.name)
        self._wait_for_kafka(topic_ids)
        inbox = Inbox()
        context = Context(
            self.settings,
            service,
            self.name,
            engine,
            topic_ids,
            world.partitions,
            "simulation",
            notified=lambda channel, payload: inbox.put(Notified(channel, payload)),
            # The prefix is random, which a schedule must not be.
            serve=lambda _prefix, _page: f"http://{self.name}/logs/",
        )
        handler = self._handler(context)
        poller = Poller(world.settings, service, self.name, inbox)
        relay = Relay(world.settings, service, self.name, engine, world.partitions)
        own_channel = outbox.channel(service.package)

        def heard(channel: str, payload: str) -> None:
            if channel in ("", own_channel):
                relay.wake(later=payload == outbox.LATER)
            if channel != own_channel:
                inbox.put(Notified(channel, payload))

        def announce(notifications: list[tuple[str, str]]) -> None:
            for channel, payload in notifications:
                heard(channel, payload)
                world.database.notify(channel, payload)

        self.process.announce = announce  # type: ignore[attr-defined]
        self._listen({own_channel, *_CHANNELS.get(service.name, ())}, heard)
        worker = WorkerContext(world.settings, service, self.name, engine, poller, handler, topic_ids, world.partitions)
        self.loop = Loop(worker, inbox)
        poller.start()
        relay.start()
        self._inbox = inbox
        self.loop.run()
        # Like ``bus.service``: it was told to stop.
        poller.stop()
        handler.close()
        world.scheduler.kill(self.process)

    def stop(self) -> bool:
        """SIGTERM. Returns whether the replica had started by then."""
        if self.loop is None or self._inbox is None:
            return False
        self.stopping = True
        self.loop.stop()
        self._inbox.put(Wake())
        return True

    def _wait_for_kafka(self, topic_ids: TopicIds) -> None:
        while True:
            try:
                topic_ids.refresh()
            except KafkaException:
                self.world.scheduler.wait(object(), 0.5)
            else:
                return

    def _engine(self) -> Any:
        return MemoryEngine(self.world.database, self.name, lambda: self.lingers)

    def _handler(self, context: Context) -> Handler:
        handler = self._handler_of(context)
        self._shows_bugs(handler, "check")
        if isinstance(handler, StarterHandler):
            self._shows_bugs(handler._claims, "check")
        return handler

    def _shows_bugs(self, owner: Any, name: str) -> None:
        """An exception of our own code ends the schedule, though a service would try again and go on."""
        call = getattr(owner, name)

        def called(*given: Any) -> Any:
            try:
                return call(*given)
            except Exception as e:
                if classify(e) is Fault.POISON and not self.world.has_bugs:
                    self.world.scheduler.failure = self.world.scheduler.failure or e
                raise

        setattr(owner, name, called)

    def _handler_of(self, context: Context) -> Handler:
        if self.service is PLANNER:
            return PlannerHandler(context)
        if self.service is WATCHER:
            return WatcherHandler(context)
        if self.service is CALLBACK_RUNNER:
            return CallbackHandler(context)
        for pool in self.serves:
            slots = settings_of(context.settings, pool).driver_slots
            self.executors[pool] = SimulatedExecutor(self.world, self.process, pool, slots)
        handler = StarterHandler(context, self.executors)
        for executor in self.executors.values():
            executor.host = handler.host
        return handler

    def _listen(self, channels: set[str], heard: Callable[[str, str], None]) -> None:
        """Subscribe to notifications, delivered with a small delay.

        Notifications sent while there is no connection are lost; the reconnect itself is announced.
        """
        scheduler, database = self.world.scheduler, self.world.database

        def deliver(channel: str, payload: str) -> None:
            if self.process.alive:
                heard(channel, payload)

        def notified(channel: str, payload: str) -> None:
            if channel not in channels:
                return
            if scheduler.random.random() < self.world.lost_notifications:
                scheduler.at(scheduler.now + 1.0, lambda: deliver("", ""))
            else:
                scheduler.at(scheduler.now + scheduler.random.random() * 0.02, lambda: deliver(channel, payload))

        def listens_again() -> None:
            deliver("", "")

        self.listens_again = listens_again
        database.listeners.append(notified)
        self.process.on_death.append(lambda: database.listeners.remove(notified))
        heard("", "")
