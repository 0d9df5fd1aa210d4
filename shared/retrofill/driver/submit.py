"""Runs ``submit`` tasks: existing PySpark scripts, each in its own spark-submit process."""

from __future__ import annotations

import os
import signal
import string
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retrofill.domain.pipeline import SubmitScript, TaskDefinition
from retrofill.driver.context import interval_of
from retrofill.driver.launch import Launch, Piece
from retrofill.groups import lines_until_exit
from retrofill.java import with_jars
from retrofill.settings import Settings
from retrofill.spark_home import SparkHome

LAST_LINES = 20
PY_FILES, JARS, FILES = "spark.submit.pyFiles", "spark.jars", "spark.files"
KNOWN = (
    "use interval.start, interval.end, run.id, run.attempt, run.backfill_id, run.logical_date or a key of conf, "
    "like conf[key]"
)
# With the first two, the script's own Spark would become a Connect client; with the third, its
# spark-submit would not read spark-env.sh, because that of the driver has.
_NOT_THE_SCRIPTS = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_ENV_LOADED")
GROUP = (sys.executable, "-IS", str(Path(__file__).with_name("group.py")))


class SubmitFailed(Exception):
    """The script's exit status was not 0. The message contains its last lines of standard error."""


class BadArgument(ValueError):
    """An argument refers to an unknown field."""


class Submits:
    """The running scripts of one attempt, which end with it."""

    def __init__(self, settings: Settings, launch: Launch) -> None:
        self._settings = settings
        self._launch = launch
        self._lock = threading.Lock()
        # By task.
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._ending = False
        self._lease_end: float | None = None

    def renew(self, lease_end: float) -> None:
        """Extend the scripts' lease (``time.monotonic``).

        They end with it even if this process is stopped.
        """
        with self._lock:
            self._lease_end = lease_end
            for process in self._running.values():
                _send_lease(process, lease_end)

    def run(self, task: TaskDefinition, run: Piece) -> None:
        """Run a task's script and wait for it. Raises ``SubmitFailed`` or ``BadArgument``."""
        assert task.submit is not None
        with tempfile.TemporaryDirectory(prefix="retrofill-script-") as folder:
            command = self.command(task.submit, run, Path(folder))
            process = self._start(task.name, command, self.environment(task.submit, run, Path(folder)))
            try:
                last = _pass_on(process)
                status = process.wait()
            finally:
                with self._lock:
                    del self._running[task.name]
        if status != 0:
            raise SubmitFailed(f"{task.submit.script} ended with status {status}:\n" + "\n".join(last))

    def end(self) -> None:
        """Kill all running scripts and their child processes."""
        with self._lock:
            self._ending = True
            for process in self._running.values():
                _kill_group(process)

    def end_task(self, task: str) -> None:
        """Kill the task's script, if it is running, and its child processes."""
        with self._lock:
            if task in self._running:
                _kill_group(self._running[task])

    def command(self, submit: SubmitScript, run: Piece, folder: Path) -> list[str]:
        """The command line. Spark settings may be secrets, so they go into files in ``folder``.

        Raises ``BadArgument``.
        """
        home = SparkHome.of(self._settings)
        args = format_args(submit.args, self._launch, run)
        return [*home.command(self._conf(home, submit, run), folder, "client"), submit.script, *args]

    def _conf(self, home: SparkHome, submit: SubmitScript, run: Piece) -> dict[str, str]:
        """All Spark settings of the script. Its files come after those of the host's configuration."""
        launch = self._launch
        conf = {
            **home.defaults,
            "spark.app.name": f"{launch.pipeline.name} {launch.tag} run {run.id}",
            **self._settings.spark_submit_conf,
            **launch.pipeline.spark_conf,
            **submit.conf,
        }
        for name, more in ((PY_FILES, submit.py_files), (JARS, submit.jars), (FILES, submit.files)):
            if more:
                conf[name] = ",".join([*filter(None, [conf.get(name)]), *more])
        return with_jars(conf, self._settings.spark_jars)

    def environment(self, submit: SubmitScript, run: Piece, folder: Path) -> dict[str, str]:
        """The environment of a script's spark-submit. Raises ``BadArgument``."""
        inherited = {key: value for key, value in os.environ.items() if key not in _NOT_THE_SCRIPTS}
        own = dict(zip(submit.env, format_args(list(submit.env.values()), self._launch, run), strict=True))
        return {**inherited, **SparkHome.of(self._settings).environment(folder, inherited), **own}

    def _start(self, task: str, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        with self._lock:
            if self._ending:
                raise SubmitFailed("the run is being ended")
            process = subprocess.Popen(
                [*GROUP, *command],
                stdin=subprocess.PIPE,
                stdout=sys.stderr.fileno(),
                stderr=subprocess.PIPE,
                env=environment,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._running[task] = process
            if self._lease_end is not None:
                _send_lease(process, self._lease_end)
        return process


def _send_lease(process: subprocess.Popen[str], lease_end: float) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(f"{lease_end}\n")
        process.stdin.flush()
    except OSError:
        return  # it has just exited


def _pass_on(process: subprocess.Popen[str]) -> deque[str]:
    """Copy the script's standard error to ours until it exits, then kill its group.

    Returns the last lines.
    """
    last: deque[str] = deque(maxlen=LAST_LINES)
    assert process.stderr is not None
    for line in lines_until_exit(process, process.stderr):
        last.append(line.rstrip()[:500])
        sys.stderr.write(line)
    return last


def _kill_group(process: subprocess.Popen[str]) -> None:
    # After the process is reaped, its pid may have been reused.
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def format_args(args: Sequence[str], launch: Launch, run: Piece) -> list[str]:
    """Fill in fields like ``{interval.start:%Y-%m-%d}`` and ``{conf[key]}``.

    Raises ``BadArgument``.
    """
    interval = interval_of(launch, run)
    values: dict[str, Any] = {
        "interval": {"start": interval.start, "end": interval.end},
        "run": {
            "id": run.id,
            "backfill_id": launch.backfill_id,
            "attempt": run.attempt,
            "logical_date": interval.start,
        },
        "conf": launch.conf,
    }
    return [DataFormatter().vformat(arg, (), values) for arg in args]


class DataFormatter(string.Formatter):
    """``str.format`` for plain data: dots and brackets look up keys, never attributes."""

    def get_field(
        self,
        field_name: str,
        args: Sequence[Any],  # noqa: ARG002 - the standard library's signature
        kwargs: Mapping[str, Any],
    ) -> tuple[Any, str]:
        """Look up ``a.b[c]``. Raises ``BadArgument``."""
        value: Any = kwargs
        for key in field_name.replace("[", ".").replace("]", "").split("."):
            if not isinstance(value, Mapping) or key not in value:
                raise BadArgument(f"unknown field {field_name!r}: {KNOWN}")
            value = value[key]
        return value, field_name
