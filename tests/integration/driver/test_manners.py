"""User code with bad manners in real drivers: whatever it does ends as a report, and nothing leaks into other attempts."""

from __future__ import annotations

import json
from typing import Any

import psutil
import pytest
from tests.integration.driver.world import World, world
from tests.support.installation import until

from retrofill.states.task_run import PROCESS_ENDED

__all__ = ["world"]
pytestmark = pytest.mark.spark
CODE = """
import concurrent.futures, ctypes, gc, json, logging, logging.config, multiprocessing, os, pathlib, signal, subprocess
import sys, threading, time, warnings
from retrofill import Pipeline

p = Pipeline("p", schedule="@daily")

class Unspeakable(Exception):
    def __str__(self): raise RuntimeError("no words")

class Broken:
    def __getattr__(self, name): raise RuntimeError(name)

class Raises(logging.Handler):
    def emit(self, record): raise RuntimeError("it does not log")

class Blocks(logging.Handler):
    def emit(self, record): threading.Event().wait()

def fails(error=None):
    raise error or ValueError("no luck")

def stream(value):
    sys.stderr = sys.stdout = value
    fails()

def closed():
    os.close(1), os.close(2)
    fails()

def handled(handler):
    logging.getLogger().handlers = [handler]
    fails()

def forks():
    pid = os.fork()
    if pid == 0:
        fails()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def child_work(n):
    return n + 1

def pools():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(child_work, [1, 2]) == [2, 3]

def of_method(name):
    context = multiprocessing.get_context(name)
    with context.Pool(2) as pool:
        assert pool.map(str.upper, ["a", "b"]) == ["A", "B"]
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        assert list(pool.map(str.upper, ["a", "b"])) == ["A", "B"]

def programs():
    assert subprocess.run(["cat"], stdout=subprocess.PIPE).stdout == b""
    assert subprocess.check_output([sys.executable, "-c", "print(1)"]) == b"1\\n"

def left(name):
    context = multiprocessing.get_context(name)
    KEPT.extend([context.Pool(2), concurrent.futures.ProcessPoolExecutor(2, mp_context=context)])
    KEPT[1].submit(os.getpid).result()
    pids = [process.pid for process in multiprocessing.active_children()]
    (pathlib.Path(OUT[0]) / f"left-{name}").write_text(json.dumps(pids))

def forks_and_exits():
    if os.fork() == 0:
        return
    os.wait()
    os._exit(3)

KEPT, OUT = [], []

def stays():
    for daemon in (True, False):
        threading.Thread(target=time.sleep, args=(3600,), daemon=daemon).start()

def signals():
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        # From a thread, only C can.
        ctypes.CDLL(None).signal(number, 1)

def patches():
    import builtins, queue, pyspark.sql.connect.session as session
    builtins.print = fails
    json.dumps = fails
    threading.Thread.start = fails
    os.write = fails
    fails()

DO = {
    "_exit 0": lambda: os._exit(0),
    "_exit 3": lambda: os._exit(3),
    "exit of C": lambda: ctypes.CDLL(None).exit(7),
    "sys.exit": lambda: sys.exit(),
    "sys.exit 0": lambda: sys.exit(0),
    "sys.exit 2": lambda: sys.exit(2),
    "sys.exit with words": lambda: sys.exit("there is no input"),
    "KeyboardInterrupt": lambda: fails(KeyboardInterrupt()),
    "GeneratorExit": lambda: fails(GeneratorExit("over")),
    "StopIteration": lambda: fails(StopIteration("over")),
    "StopAsyncIteration": lambda: fails(StopAsyncIteration("over")),
    "unspeakable": lambda: fails(Unspeakable()),
    "stderr is None": lambda: stream(None),
    "stderr is broken": lambda: stream(Broken()),
    "stderr is closed": closed,
    "a handler raises": lambda: handled(Raises()),
    "a handler blocks": lambda: handled(Blocks()),
    "many blanks": lambda: fails(ValueError("a" + " " * 150_000 + "b")),
    "many lines": lambda: fails(ValueError("\\n" * 150_000 + "JVM")),
    "many names of secrets": lambda: fails(ValueError("passw" * 30_000)),
    "a megabyte": lambda: fails(ValueError("x" * 1_000_000)),
    "a megabyte of output": lambda: print("x" * 1_000_000),
    "forks": forks,
    "a pool of processes": pools,
    "fork": lambda: of_method("fork"),
    "spawn": lambda: of_method("spawn"),
    "forkserver": lambda: of_method("forkserver"),
    "programs": programs,
    "leaves fork": lambda: left("fork"),
    "leaves spawn": lambda: left("spawn"),
    "forks and exits": forks_and_exits,
    "threads stay": stays,
    "ignores signals": signals,
    "recursion": lambda: DO["recursion"](),
}

@p.task
def work(run):
    OUT.append(run.conf["out"])
    DO[run.conf["do"]]()
"""
# ``None``: it succeeds. Else the type of the error and what its message says.
MANNERS: dict[str, tuple[str, str] | None] = {
    "sys.exit": None,
    "sys.exit 0": None,
    "sys.exit 2": ("SystemExit", "2"),
    "sys.exit with words": ("SystemExit", "there is no input"),
    "KeyboardInterrupt": ("KeyboardInterrupt", ""),
    "GeneratorExit": ("GeneratorExit", "over"),
    "StopIteration": ("StopIteration", "over"),
    "StopAsyncIteration": ("StopAsyncIteration", "over"),
    "unspeakable": ("Unspeakable", "its text is not available"),
    "stderr is None": ("ValueError", "no luck"),
    "stderr is broken": ("ValueError", "no luck"),
    "stderr is closed": ("ValueError", "no luck"),
    "a handler raises": ("ValueError", "no luck"),
    "a handler blocks": ("ValueError", "no luck"),
    "many blanks": ("ValueError", "a "),
    "many lines": ("ValueError", ""),
    "many names of secrets": ("ValueError", "passw"),
    "a megabyte": ("ValueError", "xxx"),
    "a megabyte of output": None,
    "forks": None,
    "a pool of processes": None,
    "fork": None,
    "spawn": None,
    "forkserver": None,
    "programs": None,
    "threads stay": None,
    "ignores signals": None,
    "recursion": ("RecursionError", "maximum recursion depth"),
}
EXITS = {"_exit 0": 0, "_exit 3": 3, "exit of C": 7, "forks and exits": 3}


def test_whatever_a_task_does_ends_as_its_report_and_the_driver_serves_the_next_attempt(world: World) -> None:
    pool = world.executor()
    for what, error in MANNERS.items():
        launch = world.launch(CODE, do=what)
        pool.launch(launch)
        assert world.host.ended(60)[2:] == (True, "the driver was not allowed to begin"), what
        *_, reported, ended = world.bodies(launch)
        assert ended["type"] == "AttemptEnded", what
        assert reported["state"] == ("failed" if error else "succeeded"), (what, reported)
        if error:
            assert (reported["error"]["type"], error[1] in reported["error"]["message"]) == (error[0], True), what


@pytest.mark.parametrize("what", EXITS)
def test_a_task_that_ends_its_process_fails_with_that_as_its_error(world: World, what: str) -> None:
    pool = world.executor()
    launch = world.launch(CODE, do=what)
    pool.launch(launch)
    begun, over = world.host.over.get(timeout=60)
    assert (begun, over.task, over.try_number, over.error.type) == (launch.runs[0].id, "work", 1, PROCESS_ENDED)
    assert f"exit status {EXITS[what]}" in over.error.message
    after = world.launch(CODE, do="sys.exit 0")
    pool.launch(after)
    assert world.host.ended()[:3] == (after.attempt_id, after.runs[0].id, True)


def test_code_that_exits_when_it_is_imported_is_not_retried(world: World) -> None:
    launch = world.launch(APPLIED.replace("batch_size=3", "retries=2"))
    (world.out / "pipeline.py").write_text("import os\nos._exit(4)")
    world.executor().launch(launch)
    _, over = world.host.over.get(timeout=60)
    assert (over.task, over.try_number, over.error.type) == ("work", 3, PROCESS_ENDED)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_pool_of_processes_that_a_task_leaves_ends_with_its_attempt(world: World, context: str) -> None:
    pool = world.executor()
    launch = world.launch(CODE, do=f"leaves {context}")
    pool.launch(launch)
    assert world.host.ended(60)[2], world.log(launch)
    pids = json.loads((world.out / f"left-{context}").read_text())
    assert len(pids) > 2
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "they have ended")


LEAKS = """
import json, logging, os, pathlib, random, signal, sys, time, warnings
import numpy
import helper
from pyspark.sql import SparkSession
from retrofill import Pipeline

spark = SparkSession.builder.getOrCreate()
p = Pipeline("p", schedule="@daily", batch_size=3)

@p.task
def work(run):
    own = SparkSession.builder.getOrCreate()
    state = {
        "helper": helper.NAME,
        "session": own.session_id == spark.session_id == run.spark.session_id,
        "views": [row.viewName for row in own.sql("SHOW VIEWS").collect() if row.isTemporary],
        "conf": own.conf.get("my.own", None),
        "schema": own.catalog.currentDatabase(),
        "function": own.catalog.functionExists("plus"),
        "tags": sorted(own.getTags()),
    }
    process = {
        "folder": os.getcwd(), "variable": os.environ.get("MINE"), "zone": time.tzname[0], "filters": len(warnings.filters),
        "handlers": len(logging.getLogger().handlers), "path": "mine" in sys.path, "modules": "leaked" in sys.modules,
    }
    random_ = [random.random(), float(numpy.random.random())]
    (pathlib.Path(run.conf["out"]) / f"state-{run.id}").write_text(json.dumps([state, process, random_]))
    own.range(1).createOrReplaceTempView("day_one")
    own.conf.set("my.own", "set")
    own.sql("CREATE DATABASE IF NOT EXISTS leaks")
    own.sql("USE leaks")
    own.udf.register("plus", lambda x: x + 1, "long")
    own.addTag("mine")
    os.chdir("/")
    os.environ.update(MINE="set", TZ="Pacific/Kiritimati")
    time.tzset()
    warnings.simplefilter("error")
    logging.getLogger().addHandler(logging.NullHandler())
    sys.path.append("mine")
    sys.modules["leaked"] = sys
"""

APPLIED = """
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily", batch_size=3)

@p.task
def work(run):
    raise AssertionError("it was replaced")
"""


def test_nothing_of_one_attempt_or_run_meets_another(world: World) -> None:
    """Each pipeline has a helper of the same name, gets its session from pyspark, at the top of its module too."""
    pool = world.executor()
    found: list[tuple[Any, Any, Any]] = []
    for name in ("one", "two"):
        folder = world.out / name
        folder.mkdir()
        (folder / "helper.py").write_text(f"NAME = {name!r}")
        runs = [world.run(day=day) for day in (1, 2)]
        # Applied by a machine without a Spark.
        launch = world.launch(APPLIED, runs, folder=folder)
        (folder / "pipeline.py").write_text(LEAKS)
        pool.launch(launch)
        assert world.host.ended()[2], world.log(launch)
        tag = f"retrofill-attempt-{launch.attempt_id}"
        for run in runs:
            state, process, numbers = json.loads((world.out / f"state-{run.id}").read_text())
            assert state == {
                "helper": name,
                "session": True,
                "views": [],
                "conf": None,
                "schema": "default",
                "function": False,
                "tags": [tag, f"{tag}-run-{run.id}-work"],
            }
            found.append((state, process, numbers))
    # The second run of a batch is in the same process.
    assert found[0][1] == found[2][1]
    assert len({json.dumps(numbers) for *_, numbers in found}) == 4
