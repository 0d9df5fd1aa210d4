"""Simulated drivers: actors that follow the driver protocol and may die, stall or report late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from retrofill.protocol.launch import LaunchedRun
from retrofill.states import AttemptMode, TaskState
from retrofill_core.contract.base import Cost
from retrofill_core.contract.runs import (
    AttemptEnded,
    AttemptHeartbeat,
    ErrorInfo,
    PublishedOutput,
    Report,
    RunBaseChanged,
    RunBegan,
    RunPublicationPutOff,
    RunReported,
    RunStaged,
    SparkApplication,
    TaskReported,
)
from retrofill_core.contract.topics import Topic
from run_starter.executors import LaunchRequest, OnDelivery, TimedOut
from run_starter.host.hosting import DriverHost
from tests.simulation.hanging import hang
from tests.simulation.places import Ended
from tests.simulation.servers import wire

if TYPE_CHECKING:
    from tests.simulation.executor import SimulatedExecutor

SERVER_LOST = "Spark lost the session: its server does not answer"


def application_id(attempt_id: int) -> str:
    """The Spark application that an attempt's driver reports."""
    return f"app-{attempt_id}"


class Driver:
    """The driver of one attempt."""

    def __init__(self, executor: SimulatedExecutor, launch: LaunchRequest) -> None:
        self.executor = executor
        self.launch = launch
        self.world = executor.world
        self.process = self.world.scheduler.process(f"driver-{launch.attempt_id}")
        self.world.drivers.append(self)
        self.lease = launch.lease_seconds
        # The end of the driver's own lease, by its process clock.
        self.alive_until = 0.0
        # Pieces whose staged output is not published yet, and whether that is left to others.
        self.staged: list[Sequence[LaunchedRun]] = []
        self.gave_up = False
        # The runs whose user code is under way, and the last one that may have begun.
        self.at_runs: frozenset[int] = frozenset()
        self.begun: int | None = None
        # Why its range failed as a whole.
        self.range_error: ErrorInfo | None = None
        # Of heartbeats that wait at the host for Kafka: what is to be called once it has them.
        self._undelivered: list[OnDelivery] = []
        # The task that it ends itself for.
        self.timed_out: TimedOut | None = None
        # Whether a run failed, after which the process is replaced.
        self._fails = False
        # Why an attempt that only publishes could not.
        self._put_off: ErrorInfo | None = None

    @property
    def uses_spark(self) -> bool:
        return self.launch.mode != AttemptMode.PUBLISH and bool(self.process.tasks)

    def start(self) -> None:
        """Start the driver in a task of its own process."""
        self.world.scheduler.spawn(self.process, "driver", self._run)

    def die(self, reason: str, *, shared: bool = False) -> None:
        """End the process. If the host is still alive, it notices. ``shared``: the whole Spark server is gone."""
        if not self.process.alive:
            return
        self.world.scheduler.kill(self.process)
        host = self.executor.process
        if host.alive:
            self.world.scheduler.spawn(
                host, "driver ended", lambda: self._left(reported=False, reason=reason, shared=shared)
            )

    def lose_spark(self) -> None:
        """End the process with the Spark server of its pool, or with its own."""
        shared = self.launch.pipeline.executor == "pool"
        self.die(SERVER_LOST if shared else "its own Spark ended", shared=shared)

    def _left(self, *, reported: bool, reason: str, shared: bool = False) -> None:
        if self.executor.drivers.get(self.launch.key) is self:
            self.executor.left(self.launch.key, stays=reported and not self._fails)
            assert self.executor.host is not None
            if self.timed_out is not None and self.begun is not None:
                self.executor.host.timed_out(self.launch, self.begun, self.timed_out)
                return
            self.executor.host.driver_ended(
                self.launch, reported=reported, reason=reason, begun=self.begun, shared=shared
            )

    def _run(self) -> None:
        scheduler = self.world.scheduler
        if scheduler.random.random() < self.world.slow:
            self._prepare_slowly()
        if self.uses_spark and scheduler.now < self.world.spark_back_at:
            self._wait_for_spark()
            return
        reported = self._execute() and self._say(self._end())
        if not reported:
            # The process ends, and its publisher with it.
            scheduler.kill(self.process)
        host = self.executor.process
        if host.alive:
            scheduler.spawn(
                host, "driver ended", lambda: self._left(reported=reported, reason="it did not come to its end")
            )

    def _end(self) -> AttemptEnded:
        failed = self.range_error is not None
        state: Literal["failed", "done", "released"] = "failed" if failed else "done"
        if self._put_off is not None and self.launch.mode == AttemptMode.PUBLISH:
            return AttemptEnded(**self.launch.about, state="released", error=self._put_off, stays=True)
        # Of some attempts, Spark does not tell what they used.
        cost = Cost(core_seconds=3600.0 * len(self.launch.runs)) if self.launch.attempt_id % 4 else None
        return AttemptEnded(**self.launch.about, state=state, error=self.range_error, stays=not self._fails, cost=cost)

    def _prepare_slowly(self) -> None:
        """A slow session start, which may outlast the first lease, with heartbeats or without."""
        scheduler = self.world.scheduler
        beats = scheduler.random.random() < 0.5
        for _ in range(scheduler.random.randint(1, 15)):
            scheduler.wait(object(), scheduler.random.random() * self.lease / 5)
            if beats:
                self._say(AttemptHeartbeat(**self.launch.about))

    def _wait_for_spark(self) -> None:
        """Open a session on a server that does not answer: the client gives up in the end."""
        for _ in range(5):
            self.world.scheduler.wait(object(), self.lease / 5)
            self._say(AttemptHeartbeat(**self.launch.about))
        self.lose_spark()

    def _execute(self) -> bool:
        """Execute the runs, one by one or all at once. Returns whether everything was acknowledged."""
        for runs in self._pieces():
            run = runs[0]
            asked = self._clock()
            left = self._asked("may_begin", runs)
            if left is None or left is False:
                break
            self.alive_until = max(self.alive_until, asked + left)
            if not self.works():
                return False
            self.begun = run.id
            if run.accepted_attempt is not None:
                if not (all(self._say(RunBegan(**self._about(each))) for each in runs) and self._publish(runs)):
                    return False
            else:
                failed = any(self.world.fails(self.launch, each) for each in runs)
                if not self._work(runs, failed=failed):
                    return False
                if failed:
                    self._fails = True
                    break
        return self._published()

    def _pieces(self) -> list[tuple[LaunchedRun, ...]]:
        """One by one, all of a range, or what one attempt has staged."""
        if self.launch.mode == AttemptMode.EACH:
            return [(run,) for run in self.launch.runs]
        staged = dict.fromkeys(run.accepted_attempt for run in self.launch.runs)
        return [tuple(run for run in self.launch.runs if run.accepted_attempt == attempt) for attempt in staged]

    def _about(self, run: LaunchedRun) -> dict[str, Any]:
        return {**self.launch.about, "run_id": run.id, "attempt": run.attempt, "publication": run.publication}

    def _asked(self, what: str, runs: Sequence[LaunchedRun]) -> Any:
        """Ask the host a question. The host answers in its own process; no answer counts as no."""
        host = self.executor.process
        answer: list[Any] = []
        if not host.alive:
            return False

        def ask() -> None:
            assert self.executor.host is not None
            attempts = self.world.oracle.attempts
            over, ended = attempts.is_over(self.launch), attempts.lease_that_ended(self.launch)
            waiting = self.world.oracle.turns.waiting(self.launch)
            about = runs[0].id if what == "may_begin" else [run.id for run in runs]
            answer.append(getattr(self.executor.host, what)(self.launch, about))
            yes = answer[0] is not None and answer[0] is not False
            if yes and what == "may_begin":
                # The host knows what it allowed, whatever becomes of the driver.
                self.begun = runs[0].id
            attempts.answered(self.launch, what, over=over, ended=ended, answer=yes)
            self.world.oracle.turns.answered(self.launch, what, waiting, answer=yes)
            self.world.scheduler.wake(answer)

        self.world.scheduler.spawn(host, what, ask)
        until = self._clock() + 10.0
        while not answer and self._clock() < until and host.alive:
            self.world.scheduler.wait(answer, 1.0)
            if not answer and what == "may_begin":
                self._say(AttemptHeartbeat(**self.launch.about))
        return answer[0] if answer else False

    def works(self) -> bool:
        """Whether the process is alive and its own lease has not ended."""
        return self.process.alive and self._clock() < self.alive_until

    def _clock(self) -> float:
        return self.world.scheduler.now + self.process.offset

    def _work(self, runs: Sequence[LaunchedRun], *, failed: bool) -> bool:
        """Run user code. Returns whether it finished and its result was acknowledged.

        The driver stops itself once its lease may have ended.
        """
        world, lease = self.world, self.lease
        world.working(self, runs)
        error = ErrorInfo(type="ValueError", message="an interval fails") if failed else None
        try:
            # The driver does not wait until its reports arrive.
            spark = SparkApplication(id=application_id(self.launch.attempt_id))
            if not all(self._say(RunBegan(**self._about(run), spark=spark)) for run in runs):
                return False
            if any(world.kills(self.launch, run) for run in runs):
                world.scheduler.wait(object(), world.scheduler.random.random() * lease / 5)
                world.injected["an interval ends Spark"] += 1
                world.end_spark(pool=self.launch.pipeline.pool)
                return False
            for task in self.launch.pipeline.tasks:
                self._tell(runs, task.name, TaskState.RUNNING)
                if task is self.launch.pipeline.tasks[0] and any(world.hangs(self.launch, run) for run in runs):
                    return hang(self, runs, task)
                for _ in range(world.scheduler.random.randint(0, 2)):
                    self._wait(world.scheduler.random.random() * lease / 2)
                    if not self.beat():
                        return False
                self._tell(runs, task.name, TaskState.FAILED if failed else TaskState.SUCCEEDED, error)
        finally:
            world.worked(self)
        if failed and len(runs) > 1:
            self.range_error = error
            return True
        if error is None and self.world.stages(runs):
            return self._stage(runs)
        return all(self._finish(run, error) for run in runs)

    def _tell(self, runs: Sequence[LaunchedRun], task: str, state: TaskState, error: ErrorInfo | None = None) -> None:
        for run in runs:
            self._say(TaskReported(**self._about(run), task=task, state=state, error=error))

    def _finish(self, run: LaunchedRun, error: ErrorInfo | None) -> bool:
        if error is not None:
            return self._say(RunReported(**self._about(run), state="failed", error=error))
        return self._say(RunReported(**self._about(run), state="succeeded"))

    def _stage(self, runs: Sequence[LaunchedRun]) -> bool:
        """Report staged output, which is published in one go while the next piece is under way."""
        for run in runs:
            path = self.world.places.of(run)
            bases = (self.world.places.base(path),) if self.launch.review else ()
            if not self._say(RunStaged(**self._about(run), outputs=(path,), bases=bases)):
                return False
        self.staged.append(runs)
        if len(self.staged) == 1:
            self.world.scheduler.spawn(self.process, "publisher", self._publish_staged)
        return True

    def _publish_staged(self) -> None:
        """Publish staged output in the order of the runs, until one is left to others."""
        while self.staged and not self.gave_up:
            runs = self.staged[0]
            # What it may not publish is left to others, or to a review.
            if self._publish(runs) if self._asked("may_publish", runs) else self.works():
                self.staged.remove(runs)
            else:
                self.gave_up = True
            self.world.scheduler.wake(self.staged)

    def _published(self) -> bool:
        """Wait for the publisher. Returns whether everything was acknowledged."""
        while self.staged and not self.gave_up:
            self.world.scheduler.wait(self.staged, self.lease / 5)
            if self.staged and not self.beat():
                return False
        return self.process.alive and not self.gave_up

    def _publish(self, runs: Sequence[LaunchedRun]) -> bool:
        """Publish the output. Returns whether it finished and its results were acknowledged.

        Takes a while, so that faults can hit it.
        """
        for _ in range(self.world.scheduler.random.randint(0, 2)):
            self._wait(self.world.scheduler.random.random() * self.lease / 2)
            if not self.beat():
                return False
        self.world.oracle.publishing.begins(self.launch, runs)
        now = self.world.published_now(runs)
        if not all(self._say(self._result(run)) for run in runs[:now]):
            return False
        if now < len(runs):
            self._put_off = ErrorInfo(type="Conflict", message="another commit came first")
        return all(self._say(RunPublicationPutOff(**self._about(run), error=self._put_off)) for run in runs[now:])

    def _result(self, run: LaunchedRun) -> Report:
        if self.world.refuses(self.launch, run):
            error = ErrorInfo(type="TableRefuses", message="its column has another type now")
            return RunReported(**self._about(run), state="failed", error=error)
        places = self.world.places
        ended, path = places.publish(self.launch, run), places.of(run)
        if ended == Ended.CHANGED:
            return RunBaseChanged(**self._about(run), changed=(path,), bases=(places.base(path),))
        if ended == Ended.PUBLISHED_AGAIN:
            error = ErrorInfo(type="PublishedAgain", message=f"{path} was changed since")
            return RunReported(**self._about(run), state="failed", error=error)
        return RunReported(**self._about(run), state="succeeded", published=(PublishedOutput(name=path),))

    def _wait(self, seconds: float) -> None:
        """Work for so long. While Kafka is away, beat regularly."""
        scheduler = self.world.scheduler
        end = scheduler.now + seconds
        while (left := end - scheduler.now) > 0:
            scheduler.wait(object(), min(left, self.lease / 5))
            if self.world.broker.down:
                self.beat()

    def beat(self) -> bool:
        """Send a heartbeat. Returns whether the lease lasts."""
        sent = self._clock()
        if not self.works():
            return False
        if self.world.broker.down:
            self._wait_at_host(sent)
            return True
        if self._say(AttemptHeartbeat(**self.launch.about)):
            for delivered in self._undelivered:
                delivered(None)
            self._undelivered.clear()
            self.alive_until = max(self.alive_until, sent + self.lease)
        return self.works()

    def _wait_at_host(self, sent: float) -> None:
        """Have the host keep a heartbeat until Kafka is back. Meanwhile it renews the lease in Postgres."""
        process = self.executor.process

        def renewed() -> None:
            if self.works():
                self.alive_until = max(self.alive_until, sent + self.lease)

        def keep() -> None:
            host = self.executor.host
            assert isinstance(host, DriverHost)
            self._undelivered.append(host.heartbeats.sent(self.launch.key, lambda why: None, renewed))

        if process.alive:
            self.world.scheduler.spawn(process, "heartbeat", keep)

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
            # The client keeps retrying. Meanwhile the driver beats.
            self._wait_at_host(self._clock())
            scheduler.wait(object(), min(0.3, self.lease / 5))
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
