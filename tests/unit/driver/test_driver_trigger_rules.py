"""The trigger rules as a handwritten table: upstream states, and each rule's result for the task
after them.

The rules have the same meaning as Airflow's rules of the same names. The table shares no code with
the implementation. ``-``: there is no task before.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from retrofill.driver.graph import next_step
from retrofill.protocol.launch import Task
from retrofill.sdk.names import TriggerRule
from retrofill.states import TaskState

S = TaskState
BEFORE = {"+": S.SUCCEEDED, "x": S.FAILED, "u": S.UPSTREAM_FAILED, "s": S.SKIPPED, ".": S.RUNNING}
AFTER = {"go": S.QUEUED, "skip": S.SKIPPED, "bad": S.UPSTREAM_FAILED, "wait": S.NONE}
RULES = ("all_success", "one_success", "none_failed", "none_failed_min_one_success", "all_done")
TABLE = """
    -      go     go     go     go     go
    +      go     go     go     go     go
    x      bad    bad    bad    bad    go
    u      bad    bad    bad    bad    go
    s      skip   skip   go     skip   go
    .      wait   wait   wait   wait   wait
    ++     go     go     go     go     go
    +x     bad    go     bad    bad    go
    +u     bad    go     bad    bad    go
    +s     skip   go     go     go     go
    +.     wait   go     wait   wait   wait
    xx     bad    bad    bad    bad    go
    xu     bad    bad    bad    bad    go
    xs     bad    bad    bad    bad    go
    x.     bad    wait   bad    bad    wait
    uu     bad    bad    bad    bad    go
    us     bad    bad    bad    bad    go
    u.     bad    wait   bad    bad    wait
    ss     skip   skip   go     skip   go
    s.     skip   wait   wait   wait   wait
    +s.    skip   go     wait   wait   wait
    +sx    bad    go     bad    bad    go
    +x.    bad    go     bad    bad    wait
    sx.    bad    wait   bad    bad    wait
    ssx    bad    bad    bad    bad    go
    ++s    skip   go     go     go     go
"""
ROWS = [row.split() for row in TABLE.strip().splitlines()]
CASES = [(before, rule, end) for before, *ends in ROWS for rule, end in zip(RULES, ends, strict=True)]


def test_the_table_has_every_rule() -> None:
    assert set(RULES) == set(TriggerRule)


@pytest.mark.parametrize(("before", "rule", "expected"), CASES)
def test_a_rule_makes_of_a_task_what_the_table_says(before: str, rule: str, expected: str) -> None:
    for order in set(permutations(before.strip("-"))):
        upstream = {f"t{n}": BEFORE[sign] for n, sign in enumerate(order)}
        last = Task(name="last", after=tuple(upstream), trigger_rule=TriggerRule(rule))
        step = next_step([*(Task(name=name) for name in upstream), last], {**upstream, "last": S.NONE}, {})
        end = S.QUEUED if "last" in step.queue else step.settled.get("last", S.NONE)
        assert end == AFTER[expected], order


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("other", BEFORE)
def test_a_branch_that_goes_elsewhere_skips_a_waiting_task_by_every_rule(rule: str, other: str) -> None:
    tasks = [
        Task(name="other"),
        Task(name="fork", kind="branch"),
        Task(name="last", after=("other", "fork"), trigger_rule=TriggerRule(rule)),
    ]
    for state in (S.NONE, S.QUEUED):
        states = {"other": BEFORE[other], "fork": S.SUCCEEDED, "last": state}
        assert next_step(tasks, states, {"fork": frozenset()}).settled == {"last": S.SKIPPED}
