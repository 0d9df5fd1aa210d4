"""User code with bad manners, in warm drivers and in those of one attempt: whatever it does ends as a report with its error.

The hosts and the drivers' processes are real; their sessions have no Spark.
"""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.installation import ROOT
from tests.support.manners import ENDS, EXITS
from tests.support.tiers import some
from tests.unit.driver.pooled import Recorder

from retrofill.protocol.launch import LaunchedRun
from retrofill.states import PROCESS_ENDED, AttemptMode
from retrofill_core.contract.runs import Report, RunReported
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.settings import Settings
from run_starter.executors import LaunchRequest, OnDelivery, TimedOut, submission
from run_starter.executors.command import Drivers
from run_starter.executors.local_pool import LocalPool
from run_starter.executors.spark_submit import SparkSubmit

PATH = f"import sys; sys.path[:0] = {[str(ROOT), *(str(ROOT / each) for each in ('shared', 'services'))]!r}"
WARM = f"{PATH}; from tests.chaos import light_driver; light_driver.main()"
ONCE = f"""{PATH}
from retrofill.driver import once
from tests.chaos.light_driver import NoSessions
once.ClassicSession = lambda _: NoSessions()
once.main()
"""
CODE = """
from retrofill import Pipeline
from tests.support.manners import DO
p = Pipeline("p", schedule="@daily")

def lazily():
    yield {}["nowhere"]

@p.task
def work(run):
    DO[run.conf["do"]]()

@p.branch
def route(run):
    return lazily()
"""
IMPORTED = "import os; os._exit(4)"


class Host(Recorder):
    """Its reports are durable at once."""

    def __init__(self) -> None:
        super().__init__()
        self.reported: queue.SimpleQueue[RunReported] = queue.SimpleQueue()

    def publish(
        self,
        launch: LaunchRequest,
        report: Report,
        on_delivery: OnDelivery,
        trace: str | None,
        renewed: Callable[[], object],
    ) -> None:
        if isinstance(report, RunReported):
            self.reported.put(report)
        on_delivery(None)


class World:
    """An executor with its host. ``folder``: of the user's code."""

    def __init__(self, way: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.host, self.folder = Host(), folder
        self._attempts = 0
        settings = Settings(home=folder, driver_slots=1)
        if way == "warm":
            self.executor: Any = LocalPool(Drivers(settings), self.host, command=(sys.executable, "-c", WARM))
        else:
            patch.setattr(submission, "command", lambda *_: (sys.executable, "-c", ONCE))
            self.executor = SparkSubmit(Drivers(settings), self.host)

    def launch(self, do: str, task: str = "work", code: str = CODE, retries: int = 0) -> int:
        self._attempts += 1
        file = self.folder / f"pipeline_{self._attempts}.py"
        file.write_text(code)
        definition = PipelineDefinition.model_validate(
            {
                "name": "p",
                "schedule": "@daily",
                "tasks": [{"name": task, "kind": "branch" if task == "route" else "python", "retries": retries}],
                "code": {"file": str(file), "attribute": "p"},
            }
        )
        day = datetime(2013, 1, 1, tzinfo=UTC)
        runs = (LaunchedRun(self._attempts, 1, day, day.replace(day=2)),)
        self.executor.launch(
            LaunchRequest("b", self._attempts, AttemptMode.EACH, runs, definition, {"do": do}, lease_seconds=60.0)
        )
        return self._attempts

    def report(self) -> RunReported:
        """That of the run, after which the driver did not end by itself."""
        reported = self.host.ended()
        assert reported[1], reported
        return self.host.reported.get_nowait()

    def over(self) -> TimedOut:
        """What its host hears of a run whose code ended the process."""
        begun, found = self.host.over.get(timeout=30)
        assert begun == self._attempts
        return found


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], World]]:
    """One for each way. Pytest would make a parametrized fixture anew for each set of parameters."""
    made: dict[str, World] = {}
    with pytest.MonkeyPatch.context() as patch:

        def of(way: str) -> World:
            if way not in made:
                made[way] = World(way, tmp_path_factory.mktemp(way), patch)
            return made[way]

        yield of
        for each in made.values():
            each.executor.close()


@pytest.fixture
def world(request: pytest.FixtureRequest, worlds: Callable[[str], World]) -> World:
    return worlds(request.param)


# In drivers of one attempt, each of which is an interpreter more: what concerns its streams, its end and its processes.
OF_PROCESSES = (
    *("sys.exit 3", "KeyboardInterrupt", "stderr is closed", "a handler blocks", "many lines", "forks", "spawn"),
    *("threads stay", "hangs at its exit", "ignores signals", "empties the environment"),
)


def ways(cases: Iterable[str], *chosen: str) -> pytest.MarkDecorator:
    """Each case in warm drivers and in those of one attempt; in these, ``make test`` has the chosen ones only."""
    in_order = [(way, what) for way in ("warm", "once") for what in cases]
    marked = some(in_order, *(each for each in in_order if each[0] == "warm" or each[1] in chosen))
    return pytest.mark.parametrize(("world", "what"), marked, indirect=["world"])


@ways(ENDS, *OF_PROCESSES)
def test_whatever_a_task_does_ends_as_its_report(world: World, what: str) -> None:
    world.launch(what)
    found, expected = world.report(), ENDS[what]
    assert found.state == ("failed" if expected else "succeeded"), found
    if expected:
        assert found.error is not None
        assert (found.error.type, expected[1] in found.error.message) == (expected[0], True), found.error


@ways(EXITS, "_exit 0", "exit of C")
def test_a_task_that_ends_its_process_fails_with_that_as_its_error(world: World, what: str) -> None:
    world.launch(what)
    found = world.over()
    assert (found.task, found.try_number, found.error.type) == ("work", 1, PROCESS_ENDED)
    assert f"exit status {EXITS[what]}" in found.error.message
    world.launch("sys.exit 0")
    assert world.report().state == "succeeded"


both = pytest.mark.parametrize("world", ["warm", "once"], indirect=True)


@both
def test_code_that_exits_when_it_is_imported_is_not_retried(world: World) -> None:
    world.launch("", code=IMPORTED, retries=2)
    found = world.over()
    assert (found.task, found.try_number, found.error.type, found.everywhere) == ("work", 3, PROCESS_ENDED, True)


@both
def test_a_branch_whose_generator_raises_fails_with_that(world: World) -> None:
    world.launch("", "route")
    error = world.report().error
    assert error is not None and (error.type, error.message) == ("KeyError", "'nowhere'")
