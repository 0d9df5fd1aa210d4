"""Incident: a branch's skip overwrote tasks that were already running; their heartbeats were
refused, and they died.

Here a skip only affects tasks that have not begun, in whichever order the two reports arrive, and a
live attempt's heartbeat extends its lease whatever its tasks' states are.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import pytest
from tests.acceptance.incidents.forked_runs import (
    HISTORY,
    LEASE_SECONDS,
    RACES,
    RUNS,
    S,
    append,
    check_leases,
    check_path,
    committed,
    fields,
    live_attempts,
    race,
    skip_again,
    states,
    wait_read,
)
from tests.support.installation import Installation
from tests.support.tiers import some

from retrofill.driver.execute import MAX_PARALLEL, Execution, Result
from retrofill.protocol.facts import ErrorInfo
from retrofill.protocol.launch import Task
from retrofill.sdk.names import TriggerRule
from retrofill.states import TaskState
from retrofill_core.contract.topics import Topic


@pytest.mark.parametrize("batch", some([1, 50], 50))
def test_a_skip_never_lands_on_a_task_that_began(installation: Installation, batch: int) -> None:
    installation.start("backfill-planner")
    starters = [
        installation.start(
            "instant-starter",
            INSTANT_SECONDS="3600",
            RETROFILL_DRIVER_SLOTS=str(RUNS),
            RETROFILL_LEASE_SECONDS=str(LEASE_SECONDS),
            RETROFILL_BATCH_MESSAGES=str(batch),
        )
        for _ in range(2)
    ]
    attempts = live_attempts(installation)
    with installation.session() as owner:
        owner.execute(HISTORY)
        owner.commit()
    sent = race(installation, attempts)
    wait_read(installation, attempts, S.RUNNING)
    after_race = states(installation)
    # Both orders occurred; otherwise there was no race.
    first = Counter(after_race.values())
    assert 0 < first["skipped"] < RACES
    assert first.total() == RACES
    assert set(first) <= {"skipped", "running", "succeeded", "failed", "retrying"}

    sent += skip_again(installation, attempts)
    wait_read(installation, attempts, S.SUCCEEDED)
    assert states(installation) == after_race
    paths = committed(installation)
    for path in paths.values():
        check_path(path)
    assert {key: path[-1] for key, path in paths.items() if key[1] != "mark"} == after_race
    assert fields(installation) == paths
    check_leases(installation, sent, each=batch == 1)
    assert installation.value("SELECT count(*) FROM run WHERE state = 'running' AND attempt = 1") == RUNS
    assert installation.events(Topic.DEAD_LETTERS) == []
    for starter in starters:
        assert starter.process.poll() is None


def forked_run(*, fast_first: bool) -> list[Task]:
    """A task and a branch that selects another path, in either order, and a ``one_success`` task
    after both.
    """
    both = [Task("fast"), Task("fork", kind="branch")]
    return [
        *(both if fast_first else reversed(both)),
        Task("elsewhere", after=("fork",)),
        Task("join", after=("fast", "fork"), trigger_rule=TriggerRule.ONE_SUCCESS),
    ]


class Driver:
    """Runs one attempt's tasks and records the reported states and the executed tasks."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._changed = threading.Condition()
        self.fields: dict[str, list[str]] = defaultdict(lambda: ["none"])
        self.worked: list[str] = []

    def run(self, body: Callable[[str], object]) -> Result:
        """Run to the end; ``body`` is called with the name of each task."""

        def work(task: Task) -> object:
            self.worked.append(task.name)
            body(task.name)
            return "elsewhere" if task.name == "fork" else None

        return Execution(self._tasks, work, self._tell).run()

    def wait_told(self, task: str, state: TaskState) -> None:
        """Wait until the driver has reported this state."""
        with self._changed:
            assert self._changed.wait_for(lambda: state in self.fields[task], 10)

    def _tell(self, task: str, state: TaskState, try_number: int = 1, error: ErrorInfo | None = None) -> None:
        with self._changed:
            append(self.fields[task], state)
            self._changed.notify_all()


def test_a_driver_never_skips_what_it_started() -> None:
    ends: Counter[str] = Counter()
    for number in range(RACES):
        driver = Driver(forked_run(fast_first=number % 2 == 0))
        group = threading.Barrier(2, timeout=10)

        def body(task: str, driver: Driver = driver, group: threading.Barrier = group) -> None:
            if task in ("fast", "fork"):
                group.wait()
            elif task == "join":
                # It is still working after the branch has selected the other path.
                driver.wait_told("elsewhere", S.RUNNING)

        assert driver.run(body) == Result(True)
        for path in driver.fields.values():
            check_path(path)
        assert ("join" in driver.worked) == ("running" in driver.fields["join"])
        ends[driver.fields["join"][-1]] += 1
    # Both orders occurred; otherwise there was no race.
    assert set(ends) == {"succeeded", "skipped"}


def test_a_driver_skips_what_it_has_only_queued() -> None:
    others = [f"other{n}" for n in range(MAX_PARALLEL - 1)]
    driver = Driver([*forked_run(fast_first=True), *map(Task, others)])

    def body(task: str) -> None:
        if task == "fork":
            # The others occupy every other thread, so the join waits for one.
            driver.wait_told("join", S.QUEUED)
        elif task in others:
            driver.wait_told("elsewhere", S.RUNNING)

    assert driver.run(body) == Result(True)
    assert driver.fields["join"] == ["none", "queued", "skipped"]
    assert "join" not in driver.worked
