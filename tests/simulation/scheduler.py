"""The seeded scheduler: tasks take turns at named steps, so the seed alone decides the
interleaving.

A task is a greenlet: it has its own stack and runs only during its turn. Switching threads took
longer than most turns. Each simulated process owns tasks and a clock that may jump.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from math import inf

from greenlet import getcurrent, greenlet


class Killed(BaseException):
    """Unwinds a task whose process died.

    A ``BaseException``, so that the services' own handlers do not catch it.
    """


class Stuck(Exception):
    """The simulation made no progress or did not finish."""


class Process:
    """A simulated process. ``offset`` is how many seconds its clock is ahead of true time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.offset = 0.0
        # True time of the last clock jump.
        self.jumped_at = -inf
        self.alive = True
        self.frozen = False
        # Whether only Kafka is unreachable.
        self.cut = False
        self.tasks: list[Task] = []
        self.on_death: list[Callable[[], None]] = []


class Task:
    """One thread of a process."""

    def __init__(self, process: Process, name: str, target: Callable[[], None]) -> None:
        self.process = process
        self.name = name
        self.target = target
        self.stack: greenlet | None = None
        self.ended = False
        self.killed = False
        self.waits_for: object | None = None
        self.until: float | None = None  # true time
        self.timed_out = False
        self.connection: object | None = None


class Scheduler:
    """Runs tasks.

    ``on_step(task, what)`` is called at each step, in the current task, and may inject faults.
    """

    def __init__(self, seed: int, *, max_steps: int = 200_000) -> None:
        self.random = random.Random(seed)
        self.now = 1_000.0
        self.steps = 0
        self.max_steps = max_steps
        self.tasks: list[Task] = []
        self.processes: list[Process] = []
        self.current: Task | None = None
        self.on_step: Callable[[Task, str], None] | None = None
        self.failure: BaseException | None = None
        self.until: Callable[[], bool] | None = None
        self.switch_chance = 0.5
        self._main: greenlet = getcurrent()
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._event_no = 0
        self._unwinding = False

    # processes and tasks

    def process(self, name: str) -> Process:
        process = Process(name)
        self.processes.append(process)
        return process

    def spawn(self, process: Process, name: str, target: Callable[[], None]) -> Task:
        """Create a runnable task."""
        task = Task(process, name, target)
        if not process.alive:
            task.ended = True
            return task
        process.tasks.append(task)
        self.tasks.append(task)
        return task

    def at(self, moment: float, action: Callable[[], object]) -> None:
        """Call ``action`` at true time ``moment``, between two steps."""
        self._event_no += 1
        heapq.heappush(self._events, (moment, self._event_no, action))

    def kill(self, process: Process) -> None:
        """End a process immediately, wherever its tasks are."""
        if not process.alive:
            return
        process.alive = False
        for hook in process.on_death:
            hook()
        for task in list(process.tasks):
            if task is not self.current:
                self._unwind(task)
            else:
                # The current task cannot be unwound here. It ends at its next step or turn.
                task.waits_for = task.until = None
        process.frozen = False

    def _unwind(self, task: Task) -> None:
        if task.ended:
            return
        task.killed = True
        if task.stack is None:
            self._end(task)
            return
        before, self.current = self.current, task
        # Continue here once the task has unwound.
        task.stack.parent = getcurrent()
        task.stack.switch()
        self.current = before

    def _end(self, task: Task) -> None:
        task.ended = True
        self.tasks.remove(task)
        task.process.tasks.remove(task)

    # inside tasks

    def me(self) -> Task:
        """The running task."""
        assert self.current is not None
        return self.current

    def step(self, what: str) -> None:
        """A point at which anything may happen: another task's turn, a crash or a pause."""
        task = self.current
        if task is None:
            return
        self._check(task)
        self.steps += 1
        self.now += self.random.random() * 0.002
        if self.on_step is not None:
            self.on_step(task, what)
            self._check(task)
        if self.random.random() < self.switch_chance or task.process.frozen:
            self._give_turn()

    def _check(self, task: Task) -> None:
        if task.killed or not task.process.alive:
            raise Killed

    def wait(self, what: object, seconds: float | None = None) -> bool:
        """Wait for ``wake(what)``, at most ``seconds`` of the process clock.

        Returns whether it was woken.
        """
        task = self.me()
        self._check(task)
        task.waits_for = what
        task.until = None if seconds is None else self.now + max(0.0, seconds)
        task.timed_out = False
        self.steps += 1
        self._give_turn()
        return not task.timed_out

    def wake(self, what: object) -> None:
        """Make all tasks that wait for ``what`` runnable."""
        for task in self.tasks:
            if task.waits_for is what:
                task.waits_for = task.until = None

    def jump(self, process: Process, seconds: float) -> None:
        """Move a process's clock forward, including the timeouts of its waiting tasks."""
        process.offset += seconds
        process.jumped_at = self.now
        for task in process.tasks:
            if task.until is not None:
                task.until -= seconds

    # turns

    def _give_turn(self) -> None:
        """Switch to the next task; returns when this one is chosen again."""
        mine = self.me()
        nxt = self._choose()
        if nxt is not mine:
            self._turn_of(nxt).switch()
        self._check(mine)

    def _turn_of(self, nxt: Task | None) -> greenlet:
        """The greenlet to switch to: that of ``nxt``, or the caller of ``run`` at the end."""
        self.current = nxt
        if nxt is None:
            return self._main
        if nxt.stack is None:
            nxt.stack = greenlet(lambda *_: self._body(nxt), parent=self._main)
        return nxt.stack

    def _body(self, task: Task) -> None:
        try:
            self._check(task)
            task.target()
        except Killed:
            pass
        except BaseException as e:  # noqa: BLE001 - becomes the simulation's result
            if self.failure is None and not task.killed:
                self.failure = e
        self._end(task)
        if not task.killed:
            # When a greenlet ends, control passes to its parent.
            getcurrent().parent = self._turn_of(self._choose())

    def _choose(self) -> Task | None:
        """The next task, or ``None`` at the end of the simulation."""
        while True:
            if self.failure is not None:
                return None
            if self.steps > self.max_steps:
                self.failure = Stuck(f"no end after {self.steps} steps")
                return None
            self._due_events()
            if self.until is not None and self.until():
                return None
            ready = self._ready()
            if ready:
                return ready[0] if len(ready) == 1 else ready[int(self.random.random() * len(ready))]
            if not self._advance():
                self.failure = Stuck("every task waits for ever")
                return None

    def _ready(self) -> list[Task]:
        """Runnable tasks. This is the simulation's innermost loop."""
        ready, now = [], self.now
        for task in self.tasks:
            if task.process.frozen:
                continue
            if task.until is not None:
                if task.until > now:
                    continue
                task.waits_for = task.until = None
                task.timed_out = True
            elif task.waits_for is not None:
                continue
            ready.append(task)
        return ready

    def _due_events(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            try:
                heapq.heappop(self._events)[2]()
            except Exception as e:  # noqa: BLE001 - becomes the simulation's result
                self.failure = self.failure or e

    def _advance(self) -> bool:
        moments = [t.until for t in self.tasks if t.until is not None and not t.process.frozen]
        if self._events:
            moments.append(self._events[0][0])
        if not moments:
            return False
        self.now = max(self.now, min(moments))
        return True

    # called from outside the tasks

    def run(self, until: Callable[[], bool]) -> None:
        """Run tasks until ``until()`` holds; it is evaluated between turns.

        Raises any error from a task or a check.
        """
        self.until = until
        self._main = getcurrent()
        nxt = self._choose()
        if nxt is not None:
            self._turn_of(nxt).switch()
        self.current = None
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Kill all processes."""
        self.current = None
        self.on_step = None
        for process in self.processes:
            self.kill(process)
