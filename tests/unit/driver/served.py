"""A driver that serves launches over real pipes, with a fake session and a host that acknowledges all reports."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.driver.launches import run_of, sent

from retrofill.driver.config import Config
from retrofill.driver.process import Conversation, Ending
from retrofill.driver.report import Wire
from retrofill.driver.serve import Server
from retrofill.protocol.facts import Cost, SparkApplication
from retrofill.protocol.launch import Launch
from retrofill.states import AttemptMode
from run_starter.executors.answers import report_of

# A silent driver fails the test instead of hanging it.
HEARD_WITHIN_SECONDS = 30.0
CODE = """
import pathlib, threading
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily")
begun, go = threading.Event(), threading.Event()

@p.task
def a(run):
    run.spark.append(run.interval.start.isoformat())
    if stages := run.conf.get("stages"):
        pathlib.Path(run.stage(stages)).mkdir()
    if run.id in run.conf.get("fails", ()):
        raise ValueError("no luck")
    if run.conf.get("wait"):
        begun.set()
        go.wait(10)
        raise ValueError("its work was ended")
"""


class Reports:
    """What the driver reported, as its host would publish it."""

    def __init__(self) -> None:
        # Of the attempt.
        self.mode = AttemptMode.EACH
        self.bodies: list[dict[str, Any]] = []
        self.traces: list[str | None] = []

    def hear(self, given: dict[str, Any]) -> int:
        """Check a report by the contract. Returns its number."""
        about = SimpleNamespace(about={"backfill_id": "b", "attempt_id": 25}, mode=self.mode)
        report = report_of(about, range(100), given["report"])  # type: ignore[arg-type]
        self.bodies.append(json.loads(report.encode()))
        self.traces.append(given["trace"])
        return int(given["number"])

    def fields(self, run_id: int | None = None) -> list[str]:
        """All reports, or those about one run."""
        bodies = [body for body in self.bodies if run_id in (None, body.get("run_id"))]
        return [" ".join(filter(None, (b["type"], b.get("task"), b.get("state")))) for b in bodies]


class SessionGone(Exception):
    """A fake of Spark's error for a lost session."""


class NoSpark:
    """A fake session."""

    publishes_apart = True
    shares_server = True

    def __init__(self, went_wrong: Exception | None = None) -> None:
        self.not_cleared: Exception | None = None
        self.costs: Cost | None = None
        self.calls: list[str] = []
        self.opens, self.releases = threading.Event(), threading.Event()
        self.tells_cost = threading.Event()
        self.tells_cost.set()
        self.opens.set()
        self.releases.set()
        self.on_interrupt: Callable[[], object] = lambda: None
        self.on_release: Callable[[], object] = lambda: None
        self._went_wrong = went_wrong

    def open(self) -> None:
        self.calls.append("open")
        assert self.opens.wait(HEARD_WITHIN_SECONDS)
        if self._went_wrong:
            raise self._went_wrong

    def use(self, tag: str) -> list[str]:
        return self.calls

    def application(self) -> SparkApplication:
        return SparkApplication(id="app-1", ui="http://spark:4040")

    def lost(self, error: BaseException) -> BaseException | None:
        return error if isinstance(error, SessionGone) else None

    def clear(self) -> None:
        self.calls.append("clear")
        if self.not_cleared:
            raise self.not_cleared

    def cost(self) -> Cost | None:
        assert self.tells_cost.wait(HEARD_WITHIN_SECONDS)
        return self.costs

    def interrupt(self) -> None:
        self.calls.append("interrupt")

    def interrupt_tag(self, tag: str) -> None:
        self.calls.append(f"interrupt {tag}")
        self.on_interrupt()

    def release(self) -> None:
        assert self.releases.wait(HEARD_WITHIN_SECONDS)
        self.on_release()
        self.calls.append("release")

    def release_publisher(self) -> None:
        """It has published folders only."""

    def publisher(self) -> Any:
        raise AssertionError("it publishes folders only")

    def end_publications(self, attempts: Iterable[int]) -> None:
        """There are none."""


class World:
    """A served driver and the host's ends of its pipes."""

    def __init__(self, tmp_path: Path, name: str, spark: NoSpark) -> None:
        self.file = tmp_path / f"served_{name}.py"
        self.file.write_text(CODE)
        self.spark = spark
        self.reports = Reports()
        self._saying = threading.Lock()
        self.left: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.serving: threading.Thread | None = None
        self.ending = Ending(self.left.put)
        (heard, to_driver), (from_driver, said) = os.pipe(), os.pipe()
        self.to_driver = os.fdopen(to_driver, "w")
        self.from_driver = os.fdopen(from_driver)
        self.heard: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        host = Conversation(os.fdopen(heard), os.fdopen(said, "w"), self.ending)
        self.wire = Wire(host, on_loss=self.ending.end)
        self.server = Server(Config(), self.ending, host, self.wire, lambda _: spark)

    def serve(self) -> None:
        if self.serving is not None:
            self.serving.join(HEARD_WITHIN_SECONDS)
        self.serving = threading.Thread(target=self.server.serve_one, daemon=True)
        self.serving.start()

    def finish(self) -> None:
        """Wait until the attempt is over and its session is released."""
        assert self.serving is not None
        self.serving.join(HEARD_WITHIN_SECONDS)
        assert not self.serving.is_alive()

    def settled(self) -> list[str]:
        """All reports so far, none of which is still on its way."""
        self.wire.flush()
        return self.reports.fields()

    def say(self, message: dict[str, Any]) -> None:
        with self._saying:
            self.to_driver.write(json.dumps(message) + "\n")
            self.to_driver.flush()

    def hear(self) -> Any:
        return json.loads(self.heard.get(timeout=HEARD_WITHIN_SECONDS))

    def _listen(self) -> None:
        for line in self.from_driver:
            report = json.loads(line).get("report")
            if report is None:
                self.heard.put(line)
            else:
                number = self.reports.hear(report)
                # A test may have hung up.
                with suppress(OSError, ValueError):
                    self.say({"acknowledged": number})

    def launch(
        self,
        task: str = "a",
        trace: str | None = None,
        runs: int = 1,
        first: object = None,
        lease_seconds: float = 60.0,
        publication: dict[str, Any] | None = None,
        accepted: Sequence[dict[str, Any]] = (),
        limits: dict[str, Any] | None = None,
        **conf: Any,
    ) -> None:
        """``runs``: with the ids from 1 on, each of a day. ``publication``: of the accepted output of
        run 1; ``accepted``: of each run. ``limits``: more fields of the task."""
        about = [publication] if publication is not None else accepted
        self.reports.mode = AttemptMode.PUBLISH if about else AttemptMode.EACH
        days = about or [{}] * runs
        given = sent(
            *(
                run_of(id, f"2013-01-{id:02}T05:00:00Z", f"2013-01-{id + 1:02}T05:00:00Z", attempt=10 + id, **more)
                for id, more in enumerate(days, 1)
            ),
            mode=str(self.reports.mode),
            pipeline={
                "timezone": "America/New_York",
                "tasks": [{"name": task, **(limits or {})}],
                "code": {"file": str(self.file), "attribute": "p"},
            },
            conf=conf,
            trace=trace,
            lease_seconds=lease_seconds,
        )
        Launch.of(given)
        self.serve()
        self.say({"launch": given})
        assert self.hear() == (first or {"may_begin": 1})

    def begins(self, run_id: int, then: Any, left: float | None = 60.0) -> None:
        """Allow the run to begin; the driver says ``then``."""
        self.say({"begin": left})
        assert self.hear() == then, f"after run {run_id} began"

    def says(self, count: int) -> list[Any]:
        """The next messages, whose order is open."""
        return sorted((self.hear() for _ in range(count)), key=str)


DONE = {"done": {"reported": True}}
"""The end of an attempt."""


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("retrofill.driver.lease.kernel_alarm", lambda _: None)
    yield World(tmp_path, request.node.name, NoSpark(getattr(request, "param", None)))


def world_module(world: World) -> Any:
    end = threading.Event()
    while world.file.stem not in sys.modules or not hasattr(sys.modules[world.file.stem], "a"):
        end.wait(0.01)
    return sys.modules[world.file.stem]
