"""Launches served one after the other over real pipes: the order of messages, reports and the
session's release, and silence once the end has begun.
"""

from __future__ import annotations

import gzip
import http.server
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from retrofill import tracing
from retrofill.contract.partitioning import partition_of
from retrofill.driver.conversation import Conversation
from retrofill.driver.launch import Launch
from retrofill.driver.process import LEASE_OVER, Ending
from retrofill.driver.report import Wire
from retrofill.driver.serve import Server
from retrofill.settings import Settings

# A silent driver fails the test instead of hanging it.
HEARD_WITHIN_SECONDS = 30.0
CODE = """
import threading
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily")
begun, go = threading.Event(), threading.Event()

@p.task
def a(run):
    run.spark.append(run.interval.start.isoformat())
    if run.conf.get("wait"):
        begun.set()
        go.wait(10)
        raise ValueError("its work was ended")
"""


class Broker:
    """A fake producer that acknowledges everything when polled."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.traces: list[str | None] = []
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def produce(self, topic: str, *, key: bytes, value: bytes, headers: Any, on_delivery: Any, partition: int) -> None:
        body = json.loads(value)
        assert topic == "t.run-reports"
        assert (key.decode(), partition) == (body["backfill_id"], partition_of(key, Settings().partitions))
        assert dict(headers)["ce_type"] == body["type"]
        self.bodies.append(body)
        self.traces.append(dict(headers).get("traceparent"))
        self._waiting.put(on_delivery)

    def poll(self, _: float) -> None:
        self._waiting.get()(None, None)

    def fields(self) -> list[str]:
        return [" ".join(filter(None, (b["type"], b.get("task"), b.get("state")))) for b in self.bodies]


class SessionGone(Exception):
    """A fake of Spark's error for a lost session."""


class NoSpark:
    """A fake session."""

    def __init__(self, went_wrong: Exception | None = None) -> None:
        self.calls: list[str] = []
        self.opens, self.releases = threading.Event(), threading.Event()
        self.opens.set()
        self.releases.set()
        self.on_release: Callable[[], object] = lambda: None
        self._went_wrong = went_wrong

    def open(self) -> None:
        self.calls.append("open")
        assert self.opens.wait(HEARD_WITHIN_SECONDS)
        if self._went_wrong:
            raise self._went_wrong

    def use(self) -> list[str]:
        return self.calls

    def lost(self, error: BaseException) -> BaseException | None:
        return error if isinstance(error, SessionGone) else None

    def interrupt(self) -> None:
        self.calls.append("interrupt")

    def release(self) -> None:
        assert self.releases.wait(HEARD_WITHIN_SECONDS)
        self.on_release()
        self.calls.append("release")


class World:
    """A served driver and the host's ends of its pipes."""

    def __init__(self, tmp_path: Path, name: str, spark: NoSpark) -> None:
        self.file = tmp_path / f"served_{name}.py"
        self.file.write_text(CODE)
        self.spark = spark
        self.broker = Broker()
        self.left: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.serving: threading.Thread | None = None
        self.ending = Ending(self.left.put)
        (heard, to_driver), (from_driver, said) = os.pipe(), os.pipe()
        self.to_driver = os.fdopen(to_driver, "w")
        self.from_driver = os.fdopen(from_driver)
        self.heard: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        host = Conversation(os.fdopen(heard), os.fdopen(said, "w"), self.ending)
        settings = Settings(topic_prefix="t.", lease_seconds=60)
        wire = Wire(settings, on_loss=self.ending.end, client=self.broker)  # type: ignore[arg-type]
        self.server = Server(settings, self.ending, host, wire, lambda _: spark)

    def serve(self) -> None:
        if self.serving is not None:
            self.serving.join(HEARD_WITHIN_SECONDS)
        self.serving = threading.Thread(target=self.server.serve_one, daemon=True)
        self.serving.start()

    def finish(self) -> None:
        """Wait until the attempt is over and its session is released."""
        assert self.serving is not None
        self.serving.join(HEARD_WITHIN_SECONDS)
        self.server.finish()

    def say(self, message: dict[str, Any]) -> None:
        self.to_driver.write(json.dumps(message) + "\n")
        self.to_driver.flush()

    def hear(self) -> Any:
        return json.loads(self.heard.get(timeout=HEARD_WITHIN_SECONDS))

    def _listen(self) -> None:
        for line in self.from_driver:
            self.heard.put(line)

    def launch(
        self,
        task: str = "a",
        trace: str | None = None,
        publication: int = 0,
        outputs: Sequence[str] = (),
        first: object = None,
        lease_seconds: float | None = None,
        **conf: Any,
    ) -> None:
        given = {
            "backfill_id": "b",
            "run_id": 1,
            "attempt": 1,
            "pipeline": {
                "name": "p",
                "schedule": "@daily",
                "timezone": "America/New_York",
                "tasks": [{"name": task}],
                "code": {"file": str(self.file), "attribute": "p"},
            },
            "interval_start": "2013-01-01T05:00:00Z",
            "interval_end": "2013-01-02T05:00:00Z",
            "conf": conf,
            "trace": trace,
            "publication": publication,
            "outputs": list(outputs),
            "lease_seconds": lease_seconds,
        }
        Launch.model_validate(given)
        self.serve()
        self.say({"launch": given})
        assert self.hear() == (first or {"may_begin": True})


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("retrofill.driver.lease.kernel_alarm", lambda _: None)
    yield World(tmp_path, request.node.name, NoSpark(getattr(request, "param", None)))


def test_a_run_from_launch_to_done_and_the_next_one(world: World) -> None:
    for _ in range(2):
        world.broker.bodies.clear()
        world.launch()
        assert world.broker.fields() == []
        world.say({"begin": 60.0})
        assert world.hear() == {"done": {"reported": True}}
        assert world.broker.fields() == [
            "TaskReported a running",
            "TaskReported a succeeded",
            "RunReported succeeded",
        ]
    world.finish()
    assert world.spark.calls == ["open", "2013-01-01T00:00:00-05:00", "release"] * 2


def test_a_driver_that_succeeded_is_done_before_it_releases_the_session(world: World) -> None:
    world.spark.releases.clear()
    world.launch()
    world.say({"begin": 60.0})
    assert world.hear() == {"done": {"reported": True}}
    assert "release" not in world.spark.calls
    # The next attempt's session is opened after the release of the last one.
    threading.Timer(0.2, world.spark.releases.set).start()
    world.launch()
    assert [call for call in world.spark.calls if not call.startswith("20")] == ["open", "release", "open"]


FAILS = """
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily")
@p.task
def a(run):
    run.spark.append("used")
    raise ValueError("no luck")
"""


@pytest.mark.parametrize("code", [FAILS, "import nonesuch_module"])
def test_a_driver_that_failed_releases_the_session_before_it_says_so(world: World, code: str) -> None:
    """A failed run may be repeated: what this attempt started in Spark must have ended by then."""
    world.file.write_text(code)
    reported: list[list[str]] = []
    world.spark.on_release = lambda: reported.append(world.broker.fields())
    world.launch()
    world.say({"begin": 60.0})
    assert world.hear() == {"done": {"reported": True}}
    world.finish()
    assert world.broker.fields()[-1] == "RunReported failed"
    assert reported == [world.broker.fields()[:-1]]
    assert world.spark.calls.count("release") == 1


def test_a_session_that_takes_long_to_open_sends_heartbeats_meanwhile(world: World) -> None:
    world.spark.opens.clear()
    threading.Timer(0.5, world.spark.opens.set).start()
    world.launch(lease_seconds=1.0)
    assert set(world.broker.fields()) == {"RunHeartbeat"}
    world.say({"begin": 60.0})
    assert world.hear() == {"done": {"reported": True}}
    assert "RunReported succeeded" in world.broker.fields()


def test_what_is_left_of_the_lease_counts_from_before_the_question(world: World) -> None:
    world.launch()
    time.sleep(0.3)
    world.say({"begin": 0.2})
    assert world.hear() == {"done": {"reported": False}}
    assert world.broker.fields() == []


def test_work_that_outlasts_what_is_left_of_the_lease_ends_with_it(world: World) -> None:
    world.launch(wait=True)
    world.say({"begin": 1.0})
    assert world_module(world).begun.wait(10)
    assert world.left.get(timeout=10) == LEASE_OVER
    world_module(world).go.set()


STAGES = """
from pathlib import Path
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily", timezone="America/New_York")
@p.task
def a(run):
    folder = Path(run.stage(run.conf["out"] + "/day=1"))
    folder.mkdir()
    (folder / "part-0").write_text(f"attempt {run.attempt}")
    assert run.staged(run.conf["out"] + "/day=1") == str(folder)
    if run.conf.get("fail"):
        raise ValueError("after staging")
"""


def test_staged_output_is_published_once_the_host_says_that_it_was_accepted(world: World, tmp_path: Path) -> None:
    world.file.write_text(STAGES)
    world.launch(out=str(tmp_path))
    world.say({"begin": 60.0})
    assert world.hear() == {"may_publish": True}
    assert not (tmp_path / "day=1").exists()
    assert world.broker.fields()[-1] == "RunStaged"
    assert world.broker.bodies[-1]["outputs"] == [f"{tmp_path}/day=1"]
    world.say({"publish": True})
    assert world.hear() == {"done": {"reported": True}}
    assert (tmp_path / "day=1" / "part-0").read_text() == "attempt 1"
    assert world.broker.fields()[-1] == "RunReported succeeded"
    marker = json.loads((tmp_path / "day=1" / "_retrofill.json").read_text())
    assert (marker["pipeline"], marker["backfill_id"], marker["run_id"], marker["attempt"]) == ("p", "b", 1, 1)


def test_output_that_was_not_accepted_is_neither_published_nor_told(world: World, tmp_path: Path) -> None:
    world.file.write_text(STAGES)
    world.launch(out=str(tmp_path))
    world.say({"begin": 60.0})
    assert world.hear() == {"may_publish": True}
    world.say({"publish": False})
    assert world.hear() == {"done": {"reported": False}}
    assert not (tmp_path / "day=1").exists()
    assert world.broker.fields()[-1] == "RunStaged"


def test_what_a_failed_attempt_staged_is_dropped(world: World, tmp_path: Path) -> None:
    world.file.write_text(STAGES)
    world.launch(out=str(tmp_path), fail=True)
    world.say({"begin": 60.0})
    assert world.hear() == {"done": {"reported": True}}
    assert world.broker.fields()[-1] == "RunReported failed"
    assert [path for path in tmp_path.rglob("*") if path.name == "part-0"] == []


def test_what_a_lost_driver_staged_is_published_without_spark_and_user_code(world: World, tmp_path: Path) -> None:
    world.file.write_text(STAGES)
    world.launch(out=str(tmp_path))
    world.say({"begin": 60.0})
    assert world.hear() == {"may_publish": True}
    world.say({"publish": False})
    world.hear()
    world.finish()
    world.spark.calls.clear()
    world.broker.bodies.clear()
    world.file.write_text("raise AssertionError('no user code is to be imported')")
    world.launch(publication=1, outputs=[f"{tmp_path}/day=1"])
    world.say({"begin": 60.0})
    assert world.hear() == {"done": {"reported": True}}
    assert (tmp_path / "day=1" / "part-0").read_text() == "attempt 1"
    assert world.spark.calls == []
    assert world.broker.fields() == ["RunReported succeeded"]
    assert [body["publication"] for body in world.broker.bodies] == [1]


def test_who_may_not_begin_runs_and_reports_nothing(world: World) -> None:
    world.launch()
    world.say({"begin": None})
    assert world.hear() == {"done": {"reported": False}}
    world.finish()
    assert world.broker.fields() == []
    assert world.spark.calls == ["open", "release"]


def test_code_that_cannot_be_imported_fails_the_run(world: World) -> None:
    world.file.write_text("import nonesuch_module\n")
    world.launch()
    world.say({"begin": 60.0})
    assert world.hear() == {"done": {"reported": True}}
    error = world.broker.bodies[-1]["error"]
    assert error["type"] == "ModuleNotFoundError"
    assert f'{world.file}", line 1' in error["traceback"]


def test_a_task_that_the_code_has_no_longer_fails_the_run(world: World) -> None:
    world.launch(task="gone")
    world.say({"begin": 60.0})
    assert world.hear() == {"done": {"reported": True}}
    assert "no longer has a task 'gone': apply it again" in world.broker.bodies[-1]["error"]["message"]


@pytest.mark.parametrize("world", [ConnectionError("no Spark")], indirect=True)
def test_a_session_that_cannot_be_opened_fails_the_run(world: World) -> None:
    world.launch()
    world.say({"begin": 60.0})
    assert world.hear() == {"done": {"reported": True}}
    assert world.broker.fields() == ["RunReported failed"]


@pytest.mark.parametrize("world", [SessionGone("gone, token=abc")], indirect=True)
def test_a_session_that_spark_lost_loses_the_attempt_and_the_host_hears_why(world: World) -> None:
    world.launch(first={"lost": "Spark lost the session: gone, token=***"})
    assert world.left.get(timeout=10) == 1
    assert "RunReported failed" not in world.broker.fields()


@pytest.mark.parametrize("how", ["hang up", "end", "nonsense"])
def test_the_end_interrupts_and_what_fails_by_it_is_not_told(world: World, how: str) -> None:
    world.launch(wait=True)
    world.say({"begin": 60.0})
    module = world_module(world)
    assert module.begun.wait(10)
    if how == "hang up":
        world.to_driver.close()
    else:
        world.say({"end": True} if how == "end" else [])  # type: ignore[arg-type]
    assert world.left.get(timeout=10) == (1 if how == "nonsense" else 0)
    assert world.spark.calls[-1] == "interrupt"
    module.go.set()
    threading.Event().wait(0.1)
    assert world.broker.fields() == ["TaskReported a running"]


def world_module(world: World) -> Any:
    import sys

    end = threading.Event()
    while world.file.stem not in sys.modules or not hasattr(sys.modules[world.file.stem], "a"):
        end.wait(0.01)
    return sys.modules[world.file.stem]


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(http.server.BaseHTTPRequestHandler):
    """Receives spans as an OpenTelemetry collector does."""

    spans: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.spans.extend(span for scope in resource.scope_spans for span in scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    Collector.spans.clear()
    tracing.configure_tracing("spark-driver")
    yield Collector.spans
    tracing.flush()
    monkeypatch.setattr(tracing, "_provider", None)
    server.shutdown()
    server.server_close()


def test_the_context_of_a_request_comes_back_with_the_reports_without_any_exporter(world: World) -> None:
    world.launch(trace=TRACE)
    world.say({"begin": 60.0})
    world.hear()
    assert set(world.broker.traces) == {TRACE}


def test_spans_of_run_and_tasks_are_under_the_requests(world: World, collector: list[Any]) -> None:
    world.launch(trace=TRACE)
    world.say({"begin": 60.0})
    world.hear()
    tracing.flush()
    spans = {span.name: span for span in collector}
    assert set(spans) == {"run", "task a"}
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE.split("-")[1]}
    assert spans["run"].parent_span_id.hex() == TRACE.split("-")[2]
    assert spans["task a"].parent_span_id == spans["run"].span_id
    assert {a.key: a.value.string_value for a in spans["run"].attributes if a.value.string_value} == {
        "retrofill.pipeline": "p",
        "retrofill.backfill": "b",
    }
    fields = [trace.split("-")[2] for trace in world.broker.traces if trace is not None]
    assert fields[-1] == spans["run"].span_id.hex()


def test_nothing_of_opentelemetry_is_imported_where_no_exporter_is_set() -> None:
    check = (
        "import sys; from retrofill import tracing; tracing.configure_tracing('x')\n"
        "with tracing.span('a', None): pass\n"
        "print([m for m in sys.modules if m.startswith(('opentelemetry', 'openlineage'))])"
    )
    fields = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=60)
    assert fields.stdout.strip() == "[]"


@pytest.mark.parametrize("header", ["", "00-0-0-01", TRACE.upper(), f"00-{'0' * 32}-b7ad6b7169203331-01", TRACE + "x"])
def test_a_context_that_is_not_sound_is_as_good_as_none(header: str) -> None:
    assert tracing.parent_of({"traceparent": header}) is None
