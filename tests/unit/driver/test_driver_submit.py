"""Submitted scripts: their arguments, their end, and that they never outlive their driver or its
lease.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.driver.launches import launch_of, run_of

from retrofill.driver.config import Config
from retrofill.driver.preparing import Fields
from retrofill.driver.submit import GROUP, LINE_CHARS, Submission, Submits
from retrofill.driver.submit import SubmitFailed as Failed
from retrofill.outputs.cannot_stage import CannotStage
from retrofill.outputs.staging import Staging
from retrofill.protocol.launch import Launch, Script, Task
from retrofill.protocol.script_texts import BadArgument
from retrofill.sdk.texts import Table
from retrofill.spark.clusters import tag_of
from retrofill.spark.home import read_properties


def launch(script: str = "x.py", args: tuple[str, ...] = ()) -> Launch:
    task = {"name": "a", "kind": "submit", "submit": {"script": script, "args": args}}
    return launch_of(
        run_of(7, "2013-01-01T05:00:00+00:00", "2013-01-02T05:00:00+00:00", attempt=2),
        pipeline={"timezone": "America/New_York", "tasks": [task]},
        conf={"city": "JFK", "deep": {"er": 1}},
    )


def fields_of(made: Launch) -> Fields:
    """Those of a try."""
    (piece,) = made.pieces
    return Fields(made, piece, Staging(made, piece), "a")


class Plain(Submits):
    """Runs the script without Spark."""

    def submission(self, submit: Script, fields: Fields, folder: Path) -> Submission:
        return Submission([sys.executable, submit.script], os.environ)


class Collecting:
    """A standard error that remembers what is written to it at a time."""

    def __init__(self, pieces: list[str]) -> None:
        self.write = pieces.append
        self.fileno = sys.__stderr__.fileno  # type: ignore[union-attr]


def run(tmp_path: Path, text: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    made = launch(str(script))
    task: Task = made.pipeline.tasks[0]
    Plain(Config(), made).run(task, fields_of(made))


@pytest.mark.parametrize(
    ("arg", "filled"),
    [
        ("--day", "--day"),
        ("{interval.start:%Y-%m-%d %H}", "2013-01-01 00"),
        ("{interval.end}", "2013-01-02 00:00:00-05:00"),
        ("{run.id}/{run.attempt}/{run.backfill_id}", "7/2/b"),
        ("{run.logical_date:%j}", "001"),
        ("{conf.city} {conf[city]} {conf[deep][er]}", "JFK JFK 1"),
        ("{{}}", "{}"),
    ],
)
def test_arguments_are_filled_in(arg: str, filled: str) -> None:
    assert fields_of(launch()).fill([arg]) == [filled]


@pytest.mark.parametrize("arg", ["{run.secret}", "{run.__class__}", "{0}", "{}", "{interval.start.year}", "{os}"])
def test_nothing_else_can_be_reached(arg: str) -> None:
    with pytest.raises(BadArgument, match=r"use interval\.start"):
        fields_of(launch()).fill([arg])


def test_a_path_is_staged_once_in_each_try_and_read_by_later_scripts(tmp_path: Path) -> None:
    made = launch()
    (piece,) = made.pieces
    staging = Staging(made, piece)
    text = f"{{stage:{tmp_path}/{{conf[city]}}/day={{interval.start:%Y-%m-%d}}}}"
    tries = [Fields(made, piece, staging, "a") for _ in range(2)]
    first, second = ([*each.fill([text]), *each.fill(["--to=" + text])] for each in tries)
    assert first[1] == f"--to={first[0]}"
    assert second[0] != first[0]
    target = f"{tmp_path}/JFK/day=2013-01-01"
    assert Fields(made, piece, staging, "b").fill([f"{{staged:{target}}}"]) == second[:1] == [staging.staged(target)]
    with pytest.raises(CannotStage, match=r"task 'a' already stages .*: only one task may write an output"):
        Fields(made, piece, staging, "b").fill([text])
    with pytest.raises(CannotStage, match="give the absolute path of a directory"):
        fields_of(made).fill(["{stage}"])


@pytest.mark.parametrize("published", [True, False])
def test_a_file_may_be_named_in_a_staged_directory(tmp_path: Path, published: bool) -> None:
    made = launch()
    (piece,) = made.pieces
    staging = Staging(made, piece)
    (file,) = Fields(made, piece, staging, "a").fill([f"{{stage:{tmp_path}/day=1}}/totals.csv"])
    if published:
        Path(file).write_text("1")
        assert staging.seal() == {piece.runs[0].id: (f"{tmp_path}/day=1",)}
    else:
        with pytest.raises(CannotStage, match="but wrote nothing there"):
            staging.seal()


def test_what_is_staged_is_not_made_for_a_program_that_makes_it(tmp_path: Path) -> None:
    made = launch()
    (piece,) = made.pieces
    fields = Fields(made, piece, Staging(made, piece), "a")
    assert not Path(fields.fill([f"{{stage:{tmp_path}/day=1}}"])[0]).exists()


def test_a_table_is_lent_once_in_each_try_whether_by_its_name_or_its_directory() -> None:
    made = launch()
    (piece,) = made.pieces
    lent: list[str] = []

    def lend(table: Table) -> str:
        lent.append(table.name)
        return f"{table.name}__{len(lent)}"

    tables = [Table("db.{conf[city]}", "day"), Table("db.other", "day")]
    fields = Fields(made, piece, Staging(made, piece), "a", tables, lend, lambda name: f"s3a://lake/{name}")
    texts = ["{stage_location:db.JFK}/day=1", "{stage_table:db.{conf[city]}}", "{stage_location:db.{conf[city]}}"]
    assert fields.fill(texts) == ["s3a://lake/db.JFK__1/day=1", "db.JFK__1", "s3a://lake/db.JFK__1"]
    assert fields.fill(["{stage_table:db.other}"]) == ["db.other__2"]
    assert lent == ["db.JFK", "db.other"]


def test_its_files_come_after_those_of_the_host_and_its_environment_is_filled_in(tmp_path: Path) -> None:
    made = launch()
    settings = Config(spark_submit_conf={"spark.jars": "/ours.jar", "spark.submit.pyFiles": ""})
    submit = Script(
        script="/a.py",
        py_files=("/a.zip", "/b.py"),
        jars=("/x.jar",),
        env={"DAY": "{interval.start:%Y-%m-%d}", "CITY": "{conf[city]}"},
    )
    submits = Submits(settings, made)
    command = submits.submission(submit, fields_of(made), tmp_path).command
    assert command[command.index("--deploy-mode") + 1] == "client"
    conf = read_properties((tmp_path / "spark.properties").read_text())
    assert (conf["spark.jars"], conf["spark.submit.pyFiles"]) == ("/ours.jar,/x.jar", "/a.zip,/b.py")
    assert "spark.files" not in conf
    environment = submits.environment(submit, fields_of(made), tmp_path)
    assert (environment["DAY"], environment["CITY"]) == ("2013-01-01", "JFK")
    assert environment["PATH"] == os.environ["PATH"]
    with pytest.raises(BadArgument):
        submits.environment(Script(script="/a.py", env={"X": "{nothing}"}), fields_of(made), tmp_path)


def test_a_script_that_succeeds(tmp_path: Path) -> None:
    run(tmp_path, f"open({str(tmp_path / 'out')!r}, 'w').write('x')")
    assert (tmp_path / "out").read_text() == "x"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_the_first_line_of_a_failed_scripts_error_is_its_own_wherever_it_printed_that(
    tmp_path: Path, stream: str
) -> None:
    with pytest.raises(Failed, match=r"ended with status 3: the reason\n26/11/28 10:00:01 WARN Spark: slow$"):
        run(
            tmp_path,
            f"import sys; print('26/11/28 10:00:01 WARN Spark: slow', flush=True); print('the reason', file=sys.{stream}); "
            "sys.exit(3)",
        )


def test_no_cut_of_what_a_script_said_shows_half_of_a_secret(tmp_path: Path) -> None:
    for secret in ("postgresql://me:geheim@db/x", '{"password": "geheim123"}'):
        until_secret = secret.index("geheim") + len("geheim")
        said = "x" * (LINE_CHARS - until_secret) + secret
        with pytest.raises(Failed) as failed:
            run(tmp_path, f"import sys; print({said!r}, file=sys.stderr); sys.exit(3)")
        assert "xxx" in str(failed.value) and "gehe" not in str(failed.value)


def test_of_a_line_that_does_not_end_the_error_has_the_start(tmp_path: Path) -> None:
    said = "x" * LINE_CHARS + "\r5 %" * 1_000_000
    with pytest.raises(Failed) as failed:
        run(tmp_path, f"import sys; print({said!r} + chr(10) + 'the reason', file=sys.stderr); sys.exit(3)")
    first, *others = str(failed.value).splitlines()
    assert first.endswith("status 3: the reason") and others == ["x" * LINE_CHARS]


def test_the_log_has_a_line_that_does_not_end_before_the_script_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[str] = []
    monkeypatch.setattr(sys, "stderr", Collecting(pieces))
    run(tmp_path, "import sys; sys.stderr.write('5 %\\r' * 1_000_000)")
    assert "".join(pieces) == "5 %\r" * 1_000_000
    assert max(map(len, pieces)) < 400_000


def grandchild(tmp_path: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start a process group whose command's child sleeps. Returns the child's pid."""
    pid = tmp_path / "pid"
    sleeper = f"import os, time; open({str(pid)!r} + '.tmp', 'w').write(str(os.getpid())); " + (
        f"os.rename({str(pid)!r} + '.tmp', {str(pid)!r}); time.sleep(60)"
    )
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleeper!r}])"
    group = subprocess.Popen([*GROUP, sys.executable, "-c", outer], stdin=subprocess.PIPE, start_new_session=True)
    assert group.stdin is not None
    os.write(group.stdin.fileno(), b"null\n")
    wait_until(pid.exists)
    return group, int(pid.read_text())


def wait_until(true: Any) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_the_whole_group_ends_with_its_starter(tmp_path: Path) -> None:
    group, pid = grandchild(tmp_path)
    assert group.stdin is not None
    group.stdin.close()
    assert group.wait(10) == -9
    wait_until(lambda: gone(pid))


def test_the_whole_group_ends_with_the_lease_unless_it_is_renewed(tmp_path: Path) -> None:
    group, pid = grandchild(tmp_path)
    assert group.stdin is not None
    started = time.monotonic()
    for seconds in (0.3, 0.8):
        os.write(group.stdin.fileno(), f"{started + seconds}\n".encode())
    assert group.wait(10) == -9
    assert time.monotonic() - started >= 0.8
    wait_until(lambda: gone(pid))


@pytest.mark.parametrize("how", ["its starter ends", "its lease ends"])
def test_what_is_to_follow_is_started_when_the_group_is_killed_and_only_then(how: str, tmp_path: Path) -> None:
    file = tmp_path / "after"
    for code, status in (("", 0), ("import time; time.sleep(60)", -9)):
        group = subprocess.Popen([*GROUP, sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True)
        assert group.stdin is not None
        os.write(group.stdin.fileno(), json.dumps([["tee", str(file)], "its input"]).encode() + b"\n")
        if status == 0:
            assert group.wait(10) == 0
            assert not file.exists()
        elif how == "its lease ends":
            os.write(group.stdin.fileno(), f"{time.monotonic()}\n".encode())
        else:
            group.stdin.close()
        assert group.wait(10) == status
    wait_until(lambda: file.exists() and file.read_text() == "its input")


@pytest.mark.parametrize("master", ["local[1]", "spark://host:7077"])
def test_a_script_is_not_sent_into_a_cluster_that_runs_no_python_drivers(master: str, tmp_path: Path) -> None:
    made, submit = launch(), Script(script="/a.py", deploy_mode="cluster")
    with pytest.raises(BadArgument, match=r"which needs YARN or Kubernetes, but .*_MASTER is .*: use") as refused:
        Submits(Config(spark_submit_master=master), made).submission(submit, fields_of(made), tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("master", ["yarn", "k8s://https://api:6443"])
def test_an_application_in_the_cluster_is_named_and_outlives_no_driver(master: str, tmp_path: Path) -> None:
    made, submit = launch(), Script(script="/a.py", deploy_mode="cluster")
    submits = Submits(Config(spark_submit_master=master), made)
    first, second = (submits.submission(submit, fields_of(made), tmp_path) for _ in range(2))
    assert first.tag != second.tag, "a retry's application is another one"
    assert first.cluster is not None
    attempt = tag_of(made.installation, made.attempt_id)
    assert second.tag.startswith(f"{attempt}-7-")
    conf = read_properties((tmp_path / "spark.properties").read_text())
    named = {"spark.yarn.tags": f"{attempt},{second.tag}", "spark.kubernetes.driver.pod.name": second.tag}
    assert [conf[name] for name in named if name in conf] == [named[name] for name in named if name in conf] != []
    assert second.command[second.command.index("--deploy-mode") + 1] == "cluster"


@pytest.mark.parametrize("escapes", [False, True], ids=["in its group", "in a session of its own"])
def test_a_script_ends_with_its_own_exit_though_it_left_a_process_that_holds_its_output(
    tmp_path: Path, escapes: bool
) -> None:
    pid = tmp_path / "pid"
    left = f"left = subprocess.Popen(['sleep', '600'], start_new_session={escapes})"
    text = f"import subprocess, sys; {left}; open({str(pid)!r}, 'w').write(str(left.pid)); sys.exit('the reason')"
    fields: queue.SimpleQueue[str] = queue.SimpleQueue()

    def task() -> None:
        with pytest.raises(Failed) as failed:
            run(tmp_path, text)
        fields.put(str(failed.value))

    threading.Thread(target=task, daemon=True).start()
    try:
        assert fields.get(timeout=20).endswith("ended with status 1: the reason")
        if not escapes:
            wait_until(lambda: gone(int(pid.read_text())))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_script_that_nobody_can_read_is_ended_before_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    script = tmp_path / "hangs.py"
    script.write_text("import time\ntime.sleep(600)\n")
    made = launch(str(script))
    submits = Plain(Config(), made)
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **more: Any) -> subprocess.Popen[str]:
        started.append(popen(*arguments, **more))
        return started[-1]

    monkeypatch.setattr("retrofill.driver.submit.subprocess.Popen", start)
    monkeypatch.setattr("retrofill.system.processes.selectors.DefaultSelector", limited)
    with pytest.raises(OSError, match="Too many open files"):
        submits.run(made.pipeline.tasks[0], fields_of(made))
    (process,) = started
    assert process.returncode == -signal.SIGKILL
    assert submits._running == {}
