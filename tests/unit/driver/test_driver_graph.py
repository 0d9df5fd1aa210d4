"""Tasks that may start and tasks that never will: a grid of trigger rules, branches, and walks of
random graphs to their end.
"""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrofill.driver.graph import BAD, DONE, BadBranch, choose, next_step, outcome
from retrofill.protocol.launch import Task
from retrofill.sdk.names import TriggerRule
from retrofill.states import TASK_RUN_MACHINE, TaskState

S = TaskState
ENDS = (S.SUCCEEDED, S.FAILED, S.SKIPPED, S.UPSTREAM_FAILED)
NONE_TAKEN: dict[str, frozenset[str]] = {}


def task(name: str, *after: str, rule: str = "all_success", kind: str = "python") -> Task:
    return Task.of({"name": name, "after": after, "trigger_rule": rule, "kind": kind})


DIAMOND = [
    task("b", kind="branch"),
    task("x", "b"),
    task("y", "b"),
    task("z", "x", "y", rule="none_failed_min_one_success"),
]


def test_what_a_branch_does_not_take_is_skipped_and_the_join_waits() -> None:
    states = {"b": S.SUCCEEDED, "x": S.NONE, "y": S.NONE, "z": S.NONE}
    step = next_step(DIAMOND, states, {"b": frozenset({"x"})})
    assert (step.queue, step.skip) == (("x",), ("y",))
    states |= {"x": S.SUCCEEDED, "y": S.SKIPPED}
    assert next_step(DIAMOND, states, {"b": frozenset({"x"})}).queue == ("z",)


def test_a_branch_that_takes_nothing_skips_all_after_it() -> None:
    states = {"b": S.SUCCEEDED, "x": S.NONE, "y": S.NONE, "z": S.NONE}
    assert set(next_step(DIAMOND, states, {"b": frozenset()}).skip) == {"x", "y", "z"}


def test_the_join_right_after_the_branch_is_not_skipped_when_the_other_way_leads_there() -> None:
    tasks = [task("b", kind="branch"), task("x", "b"), task("j", "b", "x")]
    states = {"b": S.SUCCEEDED, "x": S.NONE, "j": S.NONE}
    assert next_step(tasks, states, {"b": frozenset({"x"})}).settled == {}


@pytest.mark.parametrize("state", [S.NONE, S.QUEUED, S.RUNNING, S.RETRYING, S.SUCCEEDED, S.FAILED])
def test_a_skip_touches_only_what_has_not_begun(state: TaskState) -> None:
    tasks = [task("a"), task("b", kind="branch"), task("x", "a", "b", rule="one_success"), task("y", "b")]
    states = {"a": S.SUCCEEDED, "b": S.SUCCEEDED, "x": state, "y": S.SUCCEEDED}
    step = next_step(tasks, states, {"b": frozenset({"y"})})
    assert ("x" in step.skip) == (state in (S.NONE, S.QUEUED))


def test_a_failure_settles_everything_after_it_at_once() -> None:
    tasks = [task("a"), task("b", "a"), task("c", "b"), task("d", "c", rule="all_done")]
    step = next_step(tasks, {"a": S.FAILED, "b": S.NONE, "c": S.NONE, "d": S.NONE}, NONE_TAKEN)
    assert step.upstream_failed == ("b", "c")
    assert step.queue == ("d",)


@pytest.mark.parametrize("returned", [["nope"], 3, [3], ["b"], ["z"]])
def test_a_branch_may_only_name_tasks_right_after_it(returned: object) -> None:
    with pytest.raises(BadBranch, match="branch 'b'"):
        choose(DIAMOND, "b", returned)


def test_a_branch_names_one_several_or_none() -> None:
    def x() -> None: ...

    assert choose(DIAMOND, "b", "x") == choose(DIAMOND, "b", x) == choose(DIAMOND, "b", [x]) == {"x"}
    assert choose(DIAMOND, "b", ("x", "y")) == {"x", "y"}
    assert choose(DIAMOND, "b", None) == frozenset()


@pytest.mark.parametrize(("one", "other"), list(product(ENDS, repeat=2)))
def test_a_run_fails_when_any_task_did(one: TaskState, other: TaskState) -> None:
    assert outcome({"a": one, "b": other}) == (S.FAILED if {one, other} & BAD else S.SUCCEEDED)
    assert outcome({"a": one, "b": S.RUNNING}) is None


@st.composite
def graphs(draw: st.DrawFn) -> list[Task]:
    tasks: list[Task] = []
    for number in range(draw(st.integers(1, 8))):
        names = [t.name for t in tasks]
        after = draw(st.lists(st.sampled_from(names), unique=True, max_size=3)) if names else []
        kind = draw(st.sampled_from(["python", "branch"]))
        tasks.append(task(f"t{number}", *after, rule=draw(st.sampled_from(list(TriggerRule))), kind=kind))
    return tasks


@given(graphs(), st.data())
def test_every_graph_comes_to_its_end_along_the_edges_of_the_state_machine(
    tasks: list[Task], data: st.DataObject
) -> None:
    states = {t.name: S.NONE for t in tasks}
    taken: dict[str, frozenset[str]] = {}
    by_name = {t.name: t for t in tasks}

    def enter(name: str, state: TaskState) -> None:
        assert TASK_RUN_MACHINE.allows(states[name], state)
        states[name] = state

    while outcome(states) is None:
        step = next_step(tasks, states, taken)
        for name, state in step.settled.items():
            enter(name, state)
        for name in step.queue:
            assert all(states[before] in DONE for before in by_name[name].after) or (
                by_name[name].trigger_rule == TriggerRule.ONE_SUCCESS
            )
            enter(name, S.QUEUED)
        live = [name for name, state in states.items() if state in (S.QUEUED, S.RUNNING)]
        if not live:
            assert outcome(states) is not None
            break
        name = data.draw(st.sampled_from(live))
        if states[name] == S.QUEUED:
            enter(name, S.RUNNING)
            continue
        end = data.draw(st.sampled_from([S.SUCCEEDED, S.FAILED]))
        if end == S.SUCCEEDED and by_name[name].kind == "branch":
            after = [t.name for t in tasks if name in t.after]
            taken[name] = frozenset(data.draw(st.lists(st.sampled_from(after), unique=True)) if after else [])
        enter(name, end)
