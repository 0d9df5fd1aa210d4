"""Incident: a branch's skip overwrote tasks that were already running; their heartbeats were
refused, and they died.

Here a skip only affects tasks that have not begun, in whichever order the two reports arrive, and a
live attempt's heartbeat extends its lease whatever its tasks' states are.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from tests.support.installation import Installation, daily, key_on, until
from tests.support.tiers import some

from retrofill.bus.clients import producer
from retrofill.bus.envelope import headers_of, wire_headers
from retrofill.contract.runs import ErrorInfo, Report, RunHeartbeat, TaskReported
from retrofill.contract.topics import Topic
from retrofill.domain.pipeline import PipelineDefinition, TaskDefinition
from retrofill.domain.task_run import MACHINE, TaskState
from retrofill.driver.execute import MAX_PARALLEL, Execution, Result

S = TaskState
RACES = 500
RUNS, JOINS = 20, RACES // 20
LEASE_SECONDS = 600
# Committed changes in order. Triggers write them, so service code cannot omit a step.
HISTORY = """
CREATE TABLE history (
  no bigint GENERATED ALWAYS AS IDENTITY, run_id bigint, attempt int, task text, was text, became text
);
CREATE TABLE lease_history (no bigint GENERATED ALWAYS AS IDENTITY, run_id bigint, was timestamptz, became timestamptz);
CREATE FUNCTION keep_history() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
  INSERT INTO retrofill.history (run_id, attempt, task, was, became)
  VALUES (NEW.run_id, NEW.attempt, NEW.task, OLD.state, NEW.state);
  RETURN NULL;
END $$;
CREATE FUNCTION keep_lease_history() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
  INSERT INTO retrofill.lease_history (run_id, was, became) VALUES (NEW.id, OLD.lease_until, NEW.lease_until);
  RETURN NULL;
END $$;
CREATE TRIGGER keep_history AFTER UPDATE ON task_run FOR EACH ROW EXECUTE FUNCTION keep_history();
CREATE TRIGGER keep_lease_history AFTER UPDATE ON run FOR EACH ROW
  WHEN (OLD.state = 'running' AND NEW.lease_until IS DISTINCT FROM OLD.lease_until) EXECUTE FUNCTION keep_lease_history();
"""

Attempt = dict[str, Any]
TaskKey = tuple[int, str]


class Teller:
    """A driver's reporting thread: has its own connection, and each report is acknowledged before
    the next.
    """

    def __init__(self, stack: Installation, name: str) -> None:
        self._topic = f"{stack.settings.topic_prefix}{Topic.RUN_REPORTS}"
        self._producer = producer(stack.settings, name)
        self.heartbeats: Counter[int] = Counter()

    def task(self, about: Attempt, task: str, state: TaskState) -> None:
        """Report a task's state."""
        self._send(TaskReported(**about, task=task, state=state))

    def heartbeat(self, about: Attempt) -> None:
        self._send(RunHeartbeat(**about))
        self.heartbeats[about["run_id"]] += 1

    def _send(self, report: Report) -> None:
        headers = wire_headers(headers_of(report, "driver"))
        self._producer.produce(self._topic, key=report.backfill_id.encode(), value=report.encode(), headers=headers)
        assert self._producer.flush(20) == 0


def joins() -> list[str]:
    """Tasks that start after one success (``one_success``) and that the branch does not select."""
    return [f"join{n}" for n in range(JOINS)]


def forked() -> PipelineDefinition:
    """A task and a branch, many tasks after both, and an independent task that marks the end of a
    batch of reports.
    """
    tasks = [TaskDefinition(name="fast"), TaskDefinition(name="fork", kind="branch"), TaskDefinition(name="mark")]
    tasks += [
        TaskDefinition.model_validate({"name": name, "after": ["fast", "fork"], "trigger_rule": "one_success"})
        for name in joins()
    ]
    return daily(max_active_runs=RUNS).model_copy(update={"tasks": tuple(tasks)})


def live_attempts(stack: Installation) -> list[Attempt]:
    """Start runs of two backfills on two shards, with drivers that do nothing."""
    stack.apply(forked())
    for shard, month in ((1, "01"), (2, "02")):
        stack.request("p", f"2020-{month}-01", f"2020-{month}-{RUNS // 2:02}", id=key_on(shard))
    until(lambda: stack.value("SELECT count(*) FROM run WHERE state = 'running'") == RUNS, "all run")
    return [dict(row) for row in stack.query("SELECT backfill_id, id AS run_id, attempt FROM run ORDER BY id")]


def race(stack: Installation, attempts: Sequence[Attempt]) -> Counter[int]:
    """Race two threads: one reports each task running, the other skips it. Returns the heartbeats
    sent, by run.

    The threads meet before each run and take its tasks from opposite ends, so each thread is first
    for some tasks.
    """
    starter, branch = Teller(stack, "starter"), Teller(stack, "branch")
    meet = threading.Barrier(2, timeout=60)

    def start() -> None:
        ends = random.Random(4)
        for about in attempts:
            meet.wait()
            for task in joins():
                starter.task(about, task, S.RUNNING)
                starter.heartbeat(about)
                if (end := ends.choice([None, S.SUCCEEDED, S.FAILED, S.RETRYING])) is not None:
                    starter.task(about, task, end)

    def skip() -> None:
        for about in attempts:
            meet.wait()
            for task in reversed(joins()):
                branch.task(about, task, S.SKIPPED)
                branch.heartbeat(about)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(start), threads.submit(skip)]:
            done.result()
    return starter.heartbeats + branch.heartbeats


def skip_again(stack: Installation, attempts: Sequence[Attempt]) -> Counter[int]:
    """Repeat the branch's skips long after the race. Returns the heartbeats sent, by run."""
    late = Teller(stack, "late")
    for about in attempts:
        for task in joins():
            late.task(about, task, S.SKIPPED)
        late.heartbeat(about)
    return late.heartbeats


def wait_read(stack: Installation, attempts: Sequence[Attempt], mark: TaskState) -> None:
    """Wait until all reports so far are handled. Reports of one backfill are handled in order."""
    teller = Teller(stack, "mark")
    for about in attempts:
        teller.task(about, "mark", mark)
    marked = "SELECT count(*) FROM task_run WHERE task = 'mark' AND state = %s"
    until(lambda: stack.value(marked, mark) == len(attempts), "all reports were handled", seconds=300)


def states(stack: Installation) -> dict[TaskKey, str]:
    """The current states of the raced tasks."""
    rows = stack.query("SELECT run_id, task, state FROM task_run WHERE task LIKE 'join%%' AND attempt > %s", 0)
    return {(row["run_id"], row["task"]): row["state"] for row in rows}


def committed(stack: Installation) -> dict[TaskKey, list[str]]:
    """The committed states of each task's row, in order."""
    rows = stack.query("SELECT run_id, task, was, became FROM history ORDER BY no")
    paths: dict[TaskKey, list[str]] = defaultdict(lambda: ["none"])
    for row in rows:
        path = paths[row["run_id"], row["task"]]
        assert path[-1] == row["was"]
        path.append(row["became"])
    return paths


def fields(stack: Installation) -> dict[TaskKey, list[str]]:
    """The published states of each task, in order."""
    paths: dict[TaskKey, list[str]] = defaultdict(lambda: ["none"])
    for event in stack.events(Topic.RUN_EVENTS):
        if event.body["type"] == "TaskStateChanged":
            append(paths[event.body["run_id"], event.body["task"]], event.body["state"])
    return paths


def append(path: list[str], state: str) -> None:
    """Append a reported state. ``queued`` before ``running`` is implied and added."""
    path += ["queued"] if (path[-1], state) == ("none", "running") else []
    path.append(state)


def check_path(path: Sequence[str]) -> None:
    """Assert that every step is an edge and that no task that began was skipped."""
    assert all(MACHINE.allows(from_states, to) for from_states, to in pairwise(path)), path
    assert not ("running" in path and "skipped" in path), path


def check_leases(stack: Installation, sent: Counter[int], *, each: bool) -> None:
    """Assert that heartbeats only extended leases. With ``each`` (one message a transaction), each
    heartbeat extended the lease once.
    """
    rows = stack.query("SELECT run_id, was, became FROM lease_history ORDER BY no")
    assert all(row["became"] > row["was"] for row in rows)
    extended = Counter(row["run_id"] for row in rows)
    assert extended.keys() == sent.keys()
    if each:
        assert extended == sent


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


def forked_run(*, fast_first: bool) -> list[TaskDefinition]:
    """A task and a branch that selects another path, in either order, and a ``one_success`` task
    after both.
    """
    both = [TaskDefinition(name="fast"), TaskDefinition(name="fork", kind="branch")]
    after = {"after": ["fast", "fork"], "trigger_rule": "one_success"}
    return [
        *(both if fast_first else reversed(both)),
        TaskDefinition(name="elsewhere", after=("fork",)),
        TaskDefinition.model_validate({"name": "join", **after}),
    ]


class Driver:
    """Runs one attempt's tasks and records the reported states and the executed tasks."""

    def __init__(self, tasks: Sequence[TaskDefinition]) -> None:
        self._tasks = tasks
        self._changed = threading.Condition()
        self.fields: dict[str, list[str]] = defaultdict(lambda: ["none"])
        self.worked: list[str] = []

    def run(self, body: Callable[[str], object]) -> Result:
        """Run to the end; ``body`` is called with the name of each task."""

        def work(task: TaskDefinition) -> object:
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
    driver = Driver([*forked_run(fast_first=True), *(TaskDefinition(name=name) for name in others)])

    def body(task: str) -> None:
        if task == "fork":
            # The others occupy every other thread, so the join waits for one.
            driver.wait_told("join", S.QUEUED)
        elif task in others:
            driver.wait_told("elsewhere", S.RUNNING)

    assert driver.run(body) == Result(True)
    assert driver.fields["join"] == ["none", "queued", "skipped"]
    assert "join" not in driver.worked
