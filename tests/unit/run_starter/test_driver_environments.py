"""A warm driver serves attempts of one environment, and launches wait until theirs is unpacked."""

from __future__ import annotations

import errno
import os
import queue
import shutil
import sys
import threading
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tests.support.packed import pack_versions
from tests.support.threads import LIMIT, fail_once
from tests.unit.driver.pooled import Recorder, World, launch, pids, world

from retrofill.states import AttemptMode
from retrofill_core.domain.data import PackedEnvironment
from retrofill_core.settings import Settings
from retrofill_core.user_code.archive import build
from retrofill_core.user_code.environments import Packed
from retrofill_core.user_code.store import open_store
from run_starter.executors import NOT_ALLOWED, Condition, LaunchRequest, processes, worker
from run_starter.executors import preparing as module
from run_starter.executors.build import Dispatch
from run_starter.executors.command import Drivers, Interpreter, Interpreters, drivers_of
from run_starter.executors.preparing import Preparing
from run_starter.executors.worker import Waiting

__all__ = ["world"]
A, B = Packed("a" * 64, "3.11"), Packed("b" * 64, "3.11")


@dataclass(eq=False)
class Worker:
    packed: Packed | None = None
    ready: bool = True
    retiring: bool = False
    busy: bool = False


def in_environment(given: LaunchRequest, environment: PackedEnvironment | None) -> LaunchRequest:
    code = given.pipeline.code.model_copy(update={"environment": environment})
    return replace(given, pipeline=given.pipeline.model_copy(update={"code": code}))


def wanted(*environments: Packed | None) -> list[Waiting]:
    return [Waiting(launch(n), packed) for n, packed in enumerate(environments)]


def test_an_idle_driver_of_the_same_environment_is_used() -> None:
    workers = [Worker(A), Worker(), Worker(B, busy=True), Worker(B, ready=False), Worker(A, retiring=True)]
    asked = wanted(B, None, A, A)
    assert list(worker.matches(workers, asked)) == [(workers[1], asked[1].launch), (workers[0], asked[2].launch)]


def test_any_driver_publishes() -> None:
    (only,) = [Worker(A)]
    asked = Waiting(replace(launch(1), mode=AttemptMode.PUBLISH), None)
    assert list(worker.matches([only], [asked])) == [(only, asked.launch)]


@pytest.mark.parametrize(
    ("workers", "environments", "slots", "replaced", "started"),
    [
        # Two idle ones, one of which is needed.
        ([Worker(), Worker()], [A], 2, 1, A),
        # It is starting already.
        ([Worker(), Worker(A, ready=False)], [A], 2, 0, B),
        ([Worker(), Worker(A, ready=False)], [A, A], 2, 1, A),
        # There is room for another one, which is about to start.
        ([Worker()], [A], 2, 0, A),
        # All others are busy.
        ([Worker(busy=True), Worker(None, ready=False)], [A], 2, 0, A),
        ([Worker()], [], 1, 0, B),
    ],
)
def test_one_that_nobody_waits_for_is_replaced(
    workers: list[Worker], environments: list[Packed | None], slots: int, replaced: int, started: Packed | None
) -> None:
    asked = wanted(*environments)
    assert len(worker.to_replace(workers, asked, slots)) == replaced
    # Else it is as the one before it, of B.
    assert worker.to_start(workers, asked, B)[0] == started


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[PackedEnvironment]]:
    """A code store with an environment."""
    made = tmp_path_factory.mktemp("packed")
    return made / "store", pack_versions(made, made / "store", "greeting", ["1.0"])


@pytest.mark.long
def test_a_driver_of_another_environment_is_replaced_and_one_of_the_same_is_used_again(world: World) -> None:
    """On one seat."""
    store = world.folder / "store"
    one, two = pack_versions(world.folder, store, "greeting", ["1.0", "2.0"])
    pool, note = world.pool(code_store=store), world.folder / "note"
    ran: list[tuple[int, str]] = []
    for n, environment in enumerate((None, one, one, two, None)):
        go = world.folder / f"go-{n}"
        pool.launch(in_environment(launch(n, note=str(note), until=str(go)), environment))
        assert world.host.asked.get(timeout=60) == n
        (pid,) = pids(pool)
        ran.append((pid, psutil.Process(pid).cmdline()[0]))
        go.touch()
        assert world.host.ended()[:2] == (n, True)
    assert len({pid for pid, _ in ran}) == 4
    assert ran[1] == ran[2]
    assert [python for _, python in ran][::4] == [sys.executable] * 2
    names = [Path(python).parents[1].name.partition("-")[0] for _, python in ran[1:4]]
    assert names == [one.sha256, one.sha256, two.sha256]


class Host(Recorder):
    """Also records what is refused, and what is launched."""

    def __init__(self) -> None:
        super().__init__()
        self.told: queue.SimpleQueue[tuple[int, str, str]] = queue.SimpleQueue()
        self.launched: queue.SimpleQueue[LaunchRequest] = queue.SimpleQueue()

    def refused(self, launch: LaunchRequest, reason: str, *, kind: str = NOT_ALLOWED) -> None:
        self.told.put((launch.attempt_id, kind, reason))


def preparing(folder: Path, store: Path) -> tuple[Preparing, Host, queue.SimpleQueue[LaunchRequest]]:
    passed: queue.SimpleQueue[LaunchRequest] = queue.SimpleQueue()
    host = Host()
    drivers = Drivers(Settings(home=folder, code_store=store))
    return Preparing(drivers.settings, Interpreters(drivers), host, passed.put), host, passed


def test_launches_wait_until_their_environment_is_unpacked(
    tmp_path: Path, store: tuple[Path, list[PackedEnvironment]]
) -> None:
    made, _, passed = preparing(tmp_path, store[0])
    first, second = (in_environment(launch(n), store[1][0]) for n in (1, 2))
    for each in (first, second):
        made.launch(each)
    made.launch(launch(3))
    # It needs none, so it does not wait.
    assert passed.get(timeout=1).key == 3
    assert made.hosted() == {1, 2}
    assert [passed.get(timeout=60).key for _ in range(2)] == [1, 2]
    assert made.hosted() == set()
    # It is there now.
    made.launch(in_environment(launch(4), store[1][0]))
    assert passed.get_nowait().key == 4


def test_runs_fail_whose_environment_cannot_be_had(
    tmp_path: Path, store: tuple[Path, list[PackedEnvironment]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After three tries; the next ones at once."""
    monkeypatch.setattr(processes, "pause", lambda _: 0.01)
    made, host, passed = preparing(tmp_path, store[0])
    tries: list[Packed | None] = []
    get = made._interpreters.get

    missing = store[1][0].model_copy(update={"sha256": "0" * 64})

    def counted(packed: Packed | None) -> Interpreter:
        tries.append(packed)
        return get(packed) if packed == Packed(missing.sha256, missing.python) else Interpreter(sys.executable)

    monkeypatch.setattr(made._interpreters, "get", counted)
    made.launch(in_environment(launch(1), missing))
    attempt, kind, reason = host.told.get(timeout=60)
    assert (attempt, kind) == (1, "CodeUnavailable")
    assert reason.startswith(f"{store[0]}/{'0' * 64}.pex cannot be copied to ")
    assert len(tries) == module.TRIES
    made.launch(in_environment(launch(2), missing))
    assert host.told.get_nowait() == (2, kind, reason)
    assert len(tries) == module.TRIES
    # Others have seats and drivers all the while.
    assert made.condition().submits
    made.launch(in_environment(launch(3), store[1][0]))
    assert passed.get(timeout=60).key == 3
    assert made.hosted() == set()


def dispatch(folder: Path, store: Path, packed: Packed | None = None, **more: Any) -> tuple[Dispatch, Host]:
    """With a warm pool that has room for two. ``packed``: the pool's own environment."""
    settings = Settings(home=folder, code_store=store, code_cache=folder / "cache", **more)
    host, drivers = Host(), Drivers(settings, packed=packed)
    pool: Any = SimpleNamespace(
        condition=lambda: Condition(2), hosted=set, launch=host.launched.put, has_idle=lambda: True
    )
    return Dispatch(drivers, host, Interpreters(drivers), pool, pool), host


def test_a_host_that_cannot_unpack_leaves_runs_to_others_and_then_fails_them(
    tmp_path: Path, store: tuple[Path, list[PackedEnvironment]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets nothing for a while after the first tries, and everything but this after the last one."""
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    (tmp_path / "cache").write_text("a file where a folder should be")
    made, host = dispatch(tmp_path, store[0])
    for seconds in (1.0, 2.0):
        made.launch(in_environment(launch(1), store[1][0]))
        attempt, reported, reason = host.ended()
        assert (attempt, reported, host.begun[1]) == (1, False, None)
        assert "cannot be unpacked into" in reason and "check free space" in reason
        assert (made.condition().room, made.condition().submits, made.condition().note) == (0, False, reason)
        now[0] += seconds
        assert (made.condition().room, made.condition().submits, made.condition().note) == (4, True, reason)
    assert host.told.empty()
    for n in (2, 3):
        # The next one is tried too: there may be space again, and another host takes the others meanwhile.
        made.launch(in_environment(launch(n), store[1][0]))
        attempt, kind, said = host.told.get(timeout=60)
        assert (attempt, kind) == (n, "CodeUnavailable") and "check free space" in said
        assert (made.condition().room, made.condition().submits, made.condition().note) == (4, True, said)
        now[0] += processes.pause(n + 1)
    made.launch(launch(4))
    assert host.launched.get(timeout=60).key == 4
    (tmp_path / "cache").unlink()
    made.launch(in_environment(launch(5), store[1][0]))
    assert host.launched.get(timeout=60).key == 5
    assert made.condition().note is None


def test_directories_are_published_without_their_environment(
    tmp_path: Path, store: tuple[Path, list[PackedEnvironment]]
) -> None:
    """Any driver does that, also if the pool's own environment is not there."""
    made, host = dispatch(tmp_path, store[0], Packed("0" * 64))
    made.launch(replace(launch(1), mode=AttemptMode.PUBLISH))
    assert host.launched.get(timeout=60).key == 1


def test_settings_that_are_allowed_no_more_fail_the_run(tmp_path: Path) -> None:
    """They were allowed when the pipeline was applied; this host would load the code."""
    made, host = dispatch(tmp_path, tmp_path / "store")
    given = launch(1)
    conf = {"spark.jars": "https://evil.example/x.jar"}
    made.launch(replace(given, pipeline=given.pipeline.model_copy(update={"spark_conf": conf})))
    attempt, kind, reason = host.told.get_nowait()
    assert (attempt, kind) == (1, NOT_ALLOWED)
    assert "'spark.jars'" in reason and "RETROFILL_SPARK_CONF_ALLOW" in reason
    assert host.launched.empty()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_full_disk_is_no_fault_of_the_environment(
    tmp_path: Path, store: tuple[Path, list[PackedEnvironment]], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(shutil, "copyfile", full)
    made, host, _ = preparing(tmp_path, store[0])
    made.launch(in_environment(launch(1), store[1][0]))
    assert os.strerror(number) in host.ended()[2]
    assert host.told.empty()


def of_code(given: LaunchRequest, sha256: str, executor: str = "pool") -> LaunchRequest:
    code = given.pipeline.code.model_copy(update={"sha256": sha256, "root": "/"})
    return replace(given, pipeline=given.pipeline.model_copy(update={"code": code, "executor": executor}))


@pytest.fixture
def code(tmp_path: Path) -> str:
    """The hash of an archive in a code store."""
    (tmp_path / "flow.py").write_text("ONE = 1\n")
    archive = build({"flow.py": tmp_path / "flow.py"}, 1000)
    made = open_store(Settings(code_store=tmp_path / "store"))
    assert made is not None
    made.put(archive)
    return archive.sha256


@pytest.mark.parametrize("executor", ["pool", "spark-submit"])
def test_a_full_disk_fails_no_run_of_shipped_code(
    tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    made, host = dispatch(tmp_path, tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "extract", full)
        made.launch(of_code(launch(1), code, executor))
        attempt, reported, reason = host.ended()
    assert (attempt, reported, host.begun[1]) == (1, False, None)
    assert f"{code}.zip cannot be unpacked into" in reason and os.strerror(errno.ENOSPC) in reason
    assert (made.condition().submits, made.condition().note) == (False, reason)
    assert host.told.empty() and host.launched.empty()
    made.launch(of_code(launch(2), code, executor))
    assert host.launched.get(timeout=60).key == 2
    assert (tmp_path / "cache" / code / "flow.py").is_file()


def test_of_code_that_is_gone_only_the_run_that_needs_it_says_so(tmp_path: Path) -> None:
    """Not all runs of all attempts that wait, nor scripts that are elsewhere."""
    made, host = dispatch(tmp_path, tmp_path / "store")
    made.launch(of_code(launch(1), "0" * 64))
    assert host.launched.get(timeout=60).key == 1
    assert host.told.empty() and made.condition().submits


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE])
def test_a_cache_that_cannot_be_searched_loses_no_attempt(
    tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    is_dir = Path.is_dir

    def refused(path: Path) -> bool:
        if path.name == code:
            raise OSError(number, os.strerror(number))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", refused)
    made, host = dispatch(tmp_path, tmp_path / "store")
    made.launch(of_code(launch(1), code))
    attempt, reported, reason = host.ended()
    assert (attempt, reported) == (1, False)
    assert os.strerror(number) in reason and "check free space" in reason
    assert host.told.empty() and not made.condition().submits


def test_code_is_not_unpacked_here_for_a_driver_in_the_cluster(tmp_path: Path, code: str) -> None:
    made, host = dispatch(tmp_path, tmp_path / "store", spark_submit_deploy_mode="cluster")
    made.launch(of_code(launch(1), code, "spark-submit"))
    assert host.launched.get(timeout=60).key == 1
    assert not (tmp_path / "cache").exists()
    # Warm drivers are here.
    made.launch(of_code(launch(2), code))
    assert host.launched.get(timeout=60).key == 2
    assert (tmp_path / "cache" / code).is_dir()


def test_no_launch_waits_for_a_thread_that_cannot_be_started(
    tmp_path: Path, store: tuple[Path, list[PackedEnvironment]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, "prepare")
    monkeypatch.setattr(Interpreters, "get", lambda *_: Interpreter(sys.executable))
    made, host, passed = preparing(tmp_path, store[0])
    made.launch(in_environment(launch(1), store[1][0]))
    assert host.ended() == (1, False, f"the environment {store[1][0].sha256} cannot be unpacked: {LIMIT}")
    made.launch(in_environment(launch(2), store[1][0]))
    assert passed.get(timeout=60).key == 2


def test_no_launch_waits_for_an_unpacking_that_broke(
    tmp_path: Path, store: tuple[Path, list[PackedEnvironment]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of\nthreads")

    monkeypatch.setattr(Interpreters, "get", broken)
    monkeypatch.setattr(processes, "pause", lambda _: 0.01)
    made, host, _ = preparing(tmp_path, store[0])
    made.launch(in_environment(launch(1), store[1][0]))
    reason = f"the environment {store[1][0].sha256} cannot be unpacked: RuntimeError: out of"
    assert host.told.get(timeout=60) == (1, "CodeUnavailable", reason)


def test_one_that_waits_can_be_ended(
    tmp_path: Path, store: tuple[Path, list[PackedEnvironment]], monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = threading.Event()
    monkeypatch.setattr(Interpreters, "get", lambda *_: unpacked.wait(60) and Interpreter(sys.executable))
    made, host, passed = preparing(tmp_path, store[0])
    for n in (1, 2):
        made.launch(in_environment(launch(n), store[1][0]))
    made.end(1)
    assert host.ended() == (1, False, "ended before its code was unpacked")
    unpacked.set()
    assert passed.get(timeout=60).key == 2
    assert passed.empty()


def test_a_pool_may_have_an_environment_which_a_pipelines_own_replaces(tmp_path: Path) -> None:
    section: dict[str, Any] = {"driver_environment": {"address": "s3://bucket/gpu.pex", "sha256": "c" * 64}}
    drivers = drivers_of(Settings.model_validate({"home": tmp_path, "pools": {"gpu": section}}), "gpu", {})
    of_pool = Packed("c" * 64, address="s3://bucket/gpu.pex")
    own = PackedEnvironment(sha256="d" * 64, python="3.12")
    assert drivers.packed_of(launch(1)) == of_pool
    assert drivers.packed_of(in_environment(launch(1), own)) == Packed("d" * 64, "3.12")
    publishes = replace(in_environment(launch(1), own), mode=AttemptMode.PUBLISH)
    assert drivers.packed_of(publishes) == of_pool
