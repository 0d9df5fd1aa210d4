"""Simulated drivers: actors that follow the driver protocol and may die, stall or report late."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retrofill.contract.runs import ErrorInfo, Report, RunHeartbeat, RunReported, RunStaged, TaskReported
from retrofill.contract.topics import Topic
from run_starter.executors import Host, Key, LaunchRequest
from tests.simulation.scheduler import Process
from tests.simulation.servers import wire

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass
class SimulatedExecutor:
    """Hosts simulated drivers, each in its own simulated process."""

    world: World
    process: Process
    slots: int
    host: Host | None = None
    drivers: dict[Key, Driver] = field(default_factory=dict)
    # Launches that wait for a driver which has reported its end but is still there.
    waiting: dict[Key, LaunchRequest] = field(default_factory=dict)
    reported: set[Key] = field(default_factory=set)

    def free(self) -> int:
        """Number of slots without a driver that goes on."""
        return self.slots - len(self.drivers.keys() - self.reported) - len(self.waiting)

    def hosted(self) -> set[Key]:
        """Attempts whose drivers run here, or are about to."""
        return {*self.drivers, *self.waiting}

    def ending(self, keys: Collection[Key]) -> None:
        """These drivers are about to leave."""
        self.reported |= self.drivers.keys() & set(keys)

    def launch(self, launch: LaunchRequest) -> None:
        self.waiting[launch.key] = launch
        self._assign()

    def left(self, key: Key) -> None:
        """A driver has gone."""
        self.drivers.pop(key)
        self.reported.discard(key)
        self._assign()

    def _assign(self) -> None:
        while self.waiting and len(self.drivers) < self.slots:
            key = next(iter(self.waiting))
            driver = Driver(self, self.waiting.pop(key))
            self.drivers[key] = driver
            driver.start()

    def end(self, key: Key) -> None:
        """Kill one driver."""
        if (launch := self.waiting.pop(key, None)) is not None:
            assert self.host is not None
            self.host.driver_ended(launch, reported=False, reason="ended before a driver was given it")
        driver = self.drivers.get(key)
        if driver is not None:
            driver.die("ended by its host")

    def close(self) -> None:
        """Kill all drivers."""
        for driver in list(self.drivers.values()):
            driver.die("the run-starter stopped")


class Driver:
    """The driver of one attempt of one run."""

    def __init__(self, executor: SimulatedExecutor, launch: LaunchRequest) -> None:
        self.executor = executor
        self.launch = launch
        self.world = executor.world
        self.fields: dict[str, Any] = {
            "backfill_id": launch.backfill_id,
            "run_id": launch.run_id,
            "attempt": launch.attempt,
            "publication": launch.publication,
        }
        self.process = self.world.scheduler.process(f"driver-{launch.run_id}-{launch.attempt}")
        self.world.drivers.append(self)
        assert launch.lease_seconds is not None
        self.lease = launch.lease_seconds
        # The end of the driver's own lease, by its process clock. Each acknowledged heartbeat
        # extends it.
        self.alive_until = 0.0

    def start(self) -> None:
        """Start the driver in a task of its own process."""
        self.world.scheduler.spawn(self.process, "driver", self._run)

    def die(self, reason: str) -> None:
        """End the process. If the host is still alive, it notices."""
        if not self.process.alive:
            return
        self.world.scheduler.kill(self.process)
        host = self.executor.process

        def seen() -> None:
            self._left(reported=False, reason=reason)

        if host.alive:
            self.world.scheduler.spawn(host, "driver ended", seen)

    def _left(self, *, reported: bool, reason: str) -> None:
        if self.executor.drivers.get(self.launch.key) is self:
            self.executor.left(self.launch.key)
            assert self.executor.host is not None
            self.executor.host.driver_ended(self.launch, reported=reported, reason=reason)

    def _run(self) -> None:
        scheduler = self.world.scheduler
        reported = False
        if scheduler.random.random() < self.world.slow:
            # A slow session start may outlast the attempt's first lease, with heartbeats or
            # without.
            beats = scheduler.random.random() < 0.5
            for _ in range(scheduler.random.randint(1, 15)):
                scheduler.wait(object(), scheduler.random.random() * self.lease / 5)
                if beats:
                    self._say(RunHeartbeat(**self.fields))
        asked = self._clock()
        left = self._asked("may_begin")
        if left is not None and left is not False:
            self.alive_until = asked + left
        if self.works():
            reported = self._publish() if self.launch.publication else self._work()
        host = self.executor.process
        if host.alive:
            scheduler.spawn(
                host, "driver ended", lambda: self._left(reported=reported, reason="it did not come to its end")
            )

    def _asked(self, what: str) -> Any:
        """Ask the host a question. The host answers in its own process; no answer counts as no."""
        host = self.executor.process
        answer: list[Any] = []
        if not host.alive:
            return False

        def ask() -> None:
            assert self.executor.host is not None
            attempts = self.world.oracle.attempts
            over, ended = attempts.is_over(self.launch), attempts.lease_that_ended(self.launch)
            answer.append(getattr(self.executor.host, what)(self.launch))
            yes = answer[0] is not None and answer[0] is not False
            attempts.answered(self.launch, what, over=over, ended=ended, answer=yes)
            self.world.scheduler.wake(answer)

        self.world.scheduler.spawn(host, what, ask)
        until = self._clock() + 10.0
        while not answer and self._clock() < until and host.alive:
            self.world.scheduler.wait(answer, 1.0)
            if not answer and what == "may_begin":
                self._say(RunHeartbeat(**self.fields))
        return answer[0] if answer else False

    def works(self) -> bool:
        """Whether the process is alive and its own lease has not ended."""
        return self.process.alive and self._clock() < self.alive_until

    def _clock(self) -> float:
        return self.world.scheduler.now + self.process.offset

    def _work(self) -> bool:
        """Run user code. Returns whether it finished and its result was acknowledged.

        The driver stops itself once its lease may have ended.
        """
        world, lease = self.world, self.lease
        world.working(self)
        failed = world.fails(self.launch)
        error = ErrorInfo(type="ValueError", message="this interval fails") if failed else None
        try:
            for task in self.launch.pipeline.tasks:
                self._say(TaskReported(**self.fields, task=task.name, state="running"))
                for _ in range(world.scheduler.random.randint(0, 2)):
                    world.scheduler.wait(object(), world.scheduler.random.random() * lease / 2)
                    if not self._beat():
                        return False
                state = "failed" if failed else "succeeded"
                self._say(TaskReported(**self.fields, task=task.name, state=state, error=error))
            if failed or not world.stages(self.launch):
                return self._say(RunReported(**self.fields, state="failed" if failed else "succeeded", error=error))
        finally:
            world.worked(self)
        outputs = (f"/table/{self.launch.interval_start.isoformat()}",)
        return self._say(RunStaged(**self.fields, outputs=outputs)) and self._asked("may_publish") and self._publish()

    def _publish(self) -> bool:
        """Publish the output. Returns whether it finished and its result was acknowledged.

        Takes a while, so that faults can hit it.
        """
        for _ in range(self.world.scheduler.random.randint(0, 2)):
            self.world.scheduler.wait(object(), self.world.scheduler.random.random() * self.lease / 2)
            if not self._beat():
                return False
        return self._say(RunReported(**self.fields, state="succeeded"))

    def _beat(self) -> bool:
        sent = self._clock()
        if not self.works():
            return False
        if self._say(RunHeartbeat(**self.fields)):
            self.alive_until = sent + self.lease
        return self.works()

    def _say(self, report: Report) -> bool:
        """Publish a report; returns whether it was acknowledged."""
        scheduler = self.world.scheduler
        scheduler.step("report")
        if self.process.cut:
            return False
        if scheduler.random.random() < self.world.late:
            # A delayed report: the attempt may already be lost when it arrives.
            scheduler.wait(object(), scheduler.random.random() * 3 * self.lease)
        while self.world.broker.down:
            # The client keeps retrying.
            scheduler.wait(object(), 0.3)
            if not self.works():
                return False
        headers = wire(report, "driver")
        self.world.broker.append(str(Topic.RUN_REPORTS), report.backfill_id.encode(), report.encode(), headers)
        if scheduler.random.random() < self.world.duplicates:
            # A duplicate from a non-idempotent retry. Drivers use idempotent producers, but other
            # clients may not.
            self.world.broker.append(str(Topic.RUN_REPORTS), report.backfill_id.encode(), report.encode(), headers)
        scheduler.step("reported")
        return True
