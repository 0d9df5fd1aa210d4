"""Runs with many joins after a fork, drivers that race starts and skips of them, and the history of
each task.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from tests.support.definitions import daily, key_on
from tests.support.installation import Installation, until

from retrofill.states import TASK_RUN_MACHINE, TaskState
from retrofill_core.bus.clients import producer
from retrofill_core.bus.envelope import headers_of, wire_headers
from retrofill_core.contract.runs import AttemptHeartbeat, Report, TaskReported
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.pipeline import PipelineDefinition, TaskDefinition

S = TaskState
RACES = 500
RUNS, JOINS = 20, RACES // 20
LEASE_SECONDS = 600
# Committed changes in order. Triggers write them, so service code cannot omit a step.
HISTORY = """
CREATE TABLE history (
  no bigint GENERATED ALWAYS AS IDENTITY, run_id bigint, attempt int, task text, was text, became text
);
CREATE TABLE lease_history (
  no bigint GENERATED ALWAYS AS IDENTITY, attempt_id bigint, was timestamptz, became timestamptz
);
CREATE FUNCTION keep_history() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
  INSERT INTO retrofill.history (run_id, attempt, task, was, became)
  VALUES (NEW.run_id, NEW.attempt, NEW.task, OLD.state, NEW.state);
  RETURN NULL;
END $$;
CREATE FUNCTION keep_lease_history() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
  INSERT INTO retrofill.lease_history (attempt_id, was, became) VALUES (NEW.id, OLD.lease_until, NEW.lease_until);
  RETURN NULL;
END $$;
CREATE TRIGGER keep_history AFTER UPDATE ON task_run FOR EACH ROW EXECUTE FUNCTION keep_history();
CREATE TRIGGER keep_lease_history AFTER UPDATE ON attempt FOR EACH ROW
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
        attempt = about["attempt_id"]
        self._send(AttemptHeartbeat(backfill_id=about["backfill_id"], attempt_id=attempt))
        self.heartbeats[attempt] += 1

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
    return stack.query("SELECT backfill_id, attempt_id, id AS run_id, attempt FROM run ORDER BY id")


def race(stack: Installation, attempts: Sequence[Attempt]) -> Counter[int]:
    """Race two threads: one reports each task running, the other skips it. Returns the heartbeats
    sent, by attempt.

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
    """Repeat the branch's skips long after the race. Returns the heartbeats sent, by attempt."""
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
    """The published states of each task, in order, once all is published."""
    stack.wait_published()
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
    assert all(TASK_RUN_MACHINE.allows(from_states, to) for from_states, to in pairwise(path)), path
    assert not ("running" in path and "skipped" in path), path


def check_leases(stack: Installation, sent: Counter[int], *, each: bool) -> None:
    """Assert that heartbeats only extended leases. With ``each`` (one message a transaction), each
    heartbeat extended the lease once.
    """
    rows = stack.query("SELECT attempt_id, was, became FROM lease_history ORDER BY no")
    assert all(row["became"] > row["was"] for row in rows)
    extended = Counter(row["attempt_id"] for row in rows)
    assert extended.keys() == sent.keys()
    if each:
        assert extended == sent
