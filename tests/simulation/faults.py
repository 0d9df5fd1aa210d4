"""Injected faults: at random steps or around commits, in the current process or in any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.memory import errors
from tests.simulation.memory.engine import IDLE_SECONDS
from tests.simulation.scheduler import Process, Task
from tests.simulation.world import SESSION_SECONDS, World

# Steps between a decision and its consequences. They are rare, so faults are more likely there.
COMMITS = frozenset({"commit", "committed"})
MORE_OFTEN = 8
# Seconds between timeouts. Three in a row would correctly dead-letter a message.
TIME_OUTS_APART = 20.0


class Faults:
    """Injects faults at random steps until stopped."""

    def __init__(self, world: World, chance: float) -> None:
        self._world = world
        self._chance = chance
        self.on = True
        deaths = [self.crash, self.lose_machine, self.start, self.kill_driver, self.disconnect]
        stalls = [self.freeze, self.cut, self.freeze_caller, self.freeze_machine, self.stall_driver, self.rebalance]
        moves = [self.rebalance, self.rebalance, self.start, self.freeze, self.cut, self.drain]
        clocks = [self.jump, self.jump_database, self.step_database]
        servers = [
            self.stop_postgres,
            self.switch_postgres,
            self.stop_kafka,
            self.hold_locks,
            self.time_out,
            self.freeze_in_transaction,
        ]
        servers += [self.poison, self.lose_message, self.stop_spark, self.stop_receivers]
        every = [*deaths, self.crash, self.drain, *stalls, *clocks, *servers]
        # Each schedule prefers some kinds of fault.
        self._kinds: list[Any] = world.random.choice([deaths, stalls, moves, servers, every, every])
        if self._kinds is every:
            self._kinds = world.random.sample(every, world.random.randint(1, len(every)))
        self._only_commits = world.random.random() < 0.4
        # Probability that a fault hits the process that is at the step.
        self._here = world.random.choice([0.0, 0.5, 1.0])
        self._at: Task | None = None
        self._timed_out = -TIME_OUTS_APART

    def step(self, task: Task, what: str) -> None:
        """Maybe inject a fault here. ``Scheduler.on_step`` calls this."""
        random = self._world.random
        if not self.on or random.random() >= self._chance_at(what):
            return
        fault = random.choice(self._kinds)
        if fault in (self.disconnect, self.time_out):
            fault(task, what)
            return
        self._at = task
        self._inject(fault)
        self._at = None

    def plan(self, seconds: float) -> None:
        """Plan more faults within ``seconds``, because waiting tasks take few steps."""
        scheduler, random = self._world.scheduler, self._world.random
        for _ in range(random.choice([0, 0, 1, 2])):
            scheduler.at(scheduler.now + random.random() * seconds, self._strike)

    def _strike(self) -> None:
        kinds = [kind for kind in self._kinds if kind not in (self.disconnect, self.time_out)]
        if self.on and kinds:
            self._inject(self._world.random.choice(kinds))

    def _inject(self, fault: Callable[[], bool]) -> None:
        if fault():
            self._world.injected[fault.__name__] += 1

    def _chance_at(self, what: str) -> float:
        if not self._only_commits:
            return self._chance
        return self._chance * MORE_OFTEN if what in COMMITS else 0.0

    def _victim(self) -> Any:
        alive, random = self._world.alive(), self._world.random
        if self._at is not None and random.random() < self._here:
            alive = [each for each in alive if each.process is self._at.process] or alive
        return random.choice(alive) if alive else None

    def _just_expelled(self) -> float:
        """Seconds just past the session timeout, to wake up during the successor's takeover."""
        return SESSION_SECONDS + self._world.random.random() * 0.4

    def crash(self) -> bool:
        """``kill -9`` of one replica."""
        return self._end_one(machine=False)

    def lose_machine(self) -> bool:
        """Lose a machine; its connections are not closed."""
        return self._end_one(machine=True)

    def _end_one(self, *, machine: bool) -> bool:
        victim = self._victim()
        if victim is None:
            return False
        self._world.crash(victim, machine=machine)
        self._start_later(victim.service)
        return True

    def drain(self) -> bool:
        """Tell a run-starter to stop, which lets its drivers finish for a while."""
        starters = [each for each in self._world.alive() if each.executors]
        if not starters:
            return False
        victim = self._world.random.choice(starters)
        self._start_later(victim.service)
        return bool(victim.stop())

    def _start_later(self, service: Any) -> None:
        world = self._world

        def again() -> None:
            if sum(not (i.process.frozen or i.process.cut) for i in world.alive(service)) < 2:
                world.start(service)

        world.scheduler.at(world.scheduler.now + world.random.random() * 3.0, again)

    def start(self) -> bool:
        """Start another replica."""
        service = self._world.random.choice(self._world.services)
        if len(self._world.alive(service)) >= 3:
            return False
        self._world.start(service)
        return True

    def rebalance(self) -> bool:
        """Move partitions or a relay."""
        victim = self._victim()
        self._world.rebalance(None if victim is None else victim.service)
        return True

    def freeze(self) -> bool:
        """Freeze a process, sometimes long enough to make it a zombie."""
        victim = self._victim()
        if victim is None or victim.process.frozen:
            return False
        about_now = self._just_expelled()
        self._world.freeze(victim, self._world.random.choice([0.5, 4.0, about_now, about_now, 12.0, 25.0]))
        self._start_later(victim.service)
        return True

    def freeze_caller(self) -> bool:
        """Freeze a callback runner during a call until its lease has ended, then resume it."""
        callers = [each for each in self._world.alive() if each.process in self._world.calling]
        if not callers:
            return False
        victim = self._world.random.choice(callers)
        if victim.process.frozen:
            return False
        self._world.freeze(victim, self._world.random.choice([9.0, 13.0, 16.0, 18.0, 20.0]))
        self._start_later(victim.service)
        return True

    def freeze_machine(self) -> bool:
        """Freeze a run-starter and its drivers until their leases have ended, then resume them."""
        world = self._world
        hosts = [each for each in world.alive() if each.drivers]
        if not hosts:
            return False
        victim = world.random.choice(hosts)
        if victim.process.frozen:
            return False
        seconds = world.settings.lease_seconds + world.random.choice([3.0, 4.0, 6.0, 9.0])
        world.freeze(victim, seconds)
        for driver in victim.drivers:
            self._stall(driver.process, seconds)
        self._start_later(victim.service)
        return True

    def cut(self) -> bool:
        """Cut a process off from Kafka only."""
        victim = self._victim()
        if victim is None or victim.process.cut:
            return False
        about_now = self._just_expelled()
        self._world.cut(victim, self._world.random.choice([1.0, about_now, about_now, 20.0]))
        self._start_later(victim.service)
        return True

    def jump(self) -> bool:
        """Move a process's clock forward."""
        victim = self._victim()
        if victim is None:
            return False
        self._world.scheduler.jump(victim.process, self._world.random.choice([0.1, 5.0, 60.0]))
        return True

    def jump_database(self) -> bool:
        """Move the database clock forward slightly."""
        self._world.database.jump(self._world.random.choice([0.05, 1.0]))
        return True

    def step_database(self) -> bool:
        """Move the database clock forward by more than a lease."""
        self._world.database.jump(self._world.settings.lease_seconds * self._world.random.choice([1.1, 2.0]))
        return True

    def stop_postgres(self) -> bool:
        """Stop Postgres for a while."""
        if self._world.servers.is_disturbed():
            return False
        self._world.servers.stop_postgres(self._world.random.choice([0.5, 3.0, 8.0]))
        return True

    def switch_postgres(self) -> bool:
        """Have a synchronous replica take over from Postgres."""
        if self._world.servers.is_disturbed():
            return False
        self._world.servers.switch_postgres(self._world.random.choice([0.5, 3.0, 8.0]))
        return True

    def stop_kafka(self) -> bool:
        """Stop Kafka for a while."""
        if self._world.servers.is_disturbed():
            return False
        self._world.servers.stop_kafka(self._world.random.choice([0.5, 3.0, 8.0]))
        return True

    def stop_spark(self) -> bool:
        """End the Spark server, sometimes for a while."""
        self._world.end_spark(self._world.random.choice([0.0, 3.0, 12.0]))
        return True

    def stop_receivers(self) -> bool:
        """No webhook arrives for a while."""
        self._world.receivers_back_at = self._world.scheduler.now + self._world.random.choice([1.0, 10.0, 60.0])
        return True

    def hold_locks(self) -> bool:
        """Another session locks rows, sometimes for longer than ``lock_timeout``."""
        return self._world.servers.hold_locks(self._world.random.choice([0.5, 3.0, 6.0]))

    def poison(self) -> bool:
        """Publish a poison message."""
        return self._world.servers.poison()

    def lose_message(self) -> bool:
        """Make one message from a service unreadable."""
        return self._world.servers.lose_message()

    def freeze_in_transaction(self) -> bool:
        """Freeze a process inside a transaction until the server ends its session."""
        at_it = {tx.who for tx in self._world.database.open}
        victims = [i for i in self._world.alive() if i.name in at_it and not i.process.frozen]
        if not victims:
            return False
        victim = self._world.random.choice(victims)
        self._world.freeze(victim, IDLE_SECONDS + self._world.random.choice([0.1, 1.0, 4.0]))
        self._start_later(victim.service)
        return True

    def _driver(self) -> Any:
        alive = [d for d in self._world.drivers if d.process.alive and d.process.tasks]
        return self._world.random.choice(alive) if alive else None

    def kill_driver(self) -> bool:
        driver = self._driver()
        if driver is None:
            return False
        driver.die("killed")
        return True

    def stall_driver(self) -> bool:
        """Freeze a driver, sometimes until its attempt may be lost."""
        driver = self._driver()
        if driver is None or driver.process.frozen:
            return False
        self._stall(driver.process, self._world.random.choice([2.0, 10.0, 40.0]))
        return True

    def _stall(self, process: Process, seconds: float) -> None:
        process.frozen = True

        def thaw() -> None:
            process.frozen = False

        self._world.scheduler.at(self._world.scheduler.now + seconds, thaw)

    def time_out(self, task: Task, what: str) -> None:
        """Fail a transaction with ``transaction_timeout``.

        Rare enough that the same message is not blamed each time.
        """
        scheduler, mine = self._world.scheduler, self._mine(task)
        if what != "statement" or not mine or scheduler.now < self._timed_out + TIME_OUTS_APART:
            return
        self._timed_out = scheduler.now
        self._world.injected["time_out"] += 1
        for tx in mine:
            self._world.database.terminate(tx)
        raise errors.transaction_timeout()

    def _mine(self, task: Task) -> list[Any]:
        return [tx for tx in self._world.database.open if tx.who == task.process.name and not tx.waits_for]

    def disconnect(self, task: Task, what: str) -> None:
        """Break a Postgres connection. A broken COMMIT may or may not have taken effect."""
        if what not in ("statement", "commit", "committed"):
            return
        self._world.injected[f"disconnect at {what}"] += 1
        if what != "committed":
            for tx in self._mine(task):
                self._world.database.terminate(tx)
        raise errors.disconnected("server closed the connection unexpectedly")
