"""Runs ``submit`` and ``command`` tasks: scripts, each in its own spark-submit process, and other programs."""

from __future__ import annotations

import json
import os
import pkgutil
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Iterable, Mapping, Sequence

import retrofill
from retrofill.driver.config import Config
from retrofill.driver.preparing import Fields, WorkingDirectory, left_behind, prepared
from retrofill.driver.script_error import NOTHING, explained, of_program
from retrofill.masking import masked
from retrofill.protocol.facts import MAX_SEARCHED
from retrofill.protocol.launch import Launch, Script, Task
from retrofill.protocol.script_texts import BadArgument, secrets_in
from retrofill.sdk.names import PACKAGES
from retrofill.spark import clusters
from retrofill.spark.clusters import CannotKill, Cluster, cluster_of
from retrofill.spark.home import DRIVER_PYTHON, PYTHON, SparkHome, packed_file, with_environment
from retrofill.spark.java import with_jars
from retrofill.system.files import PrivateFolder
from retrofill.system.processes import lines_until_exit

LAST_LINES, LINE_CHARS = 400, 500
PY_FILES, JARS, FILES, ARCHIVES = "spark.submit.pyFiles", "spark.jars", "spark.files", "spark.archives"
# With the first two, the script's own Spark would become a Connect client; with the third, its
# spark-submit would not read spark-env.sh, because that of the driver has.
_NOT_THE_SCRIPTS = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_ENV_LOADED")
# Its text, because this package may be in an archive.
GROUP = (sys.executable, "-IS", "-c", (pkgutil.get_data(__package__, "group.py") or b"").decode())
WITH_ARGUMENTS = pkgutil.get_data(__package__, "with_arguments.py") or b""


class SubmitFailed(Exception):
    """The script's exit status was not 0. The first line of the message has what it said of the cause."""


class CommandFailed(SubmitFailed):
    """The same of a program."""


@dataclass(frozen=True)
class Running:
    """A running script. ``in_cluster``: its driver runs there, so its application must be killed too."""

    process: subprocess.Popen[str]
    in_cluster: bool


@dataclass(frozen=True)
class Submission:
    """How a script is started.

    ``cluster``: where its driver runs, and ``tag`` names its application. ``afterwards``: the command
    that ends that if the script is killed, and its input.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    cluster: Cluster | None = None
    tag: str = ""
    afterwards: tuple[Sequence[str], str] | None = None


class Submits:
    """The running scripts of one attempt, which end with it."""

    def __init__(self, settings: Config, launch: Launch) -> None:
        self._settings = settings
        self._launch = launch
        self._lock = threading.Lock()
        # By task.
        self._running: dict[str, Running] = {}
        self._ending = False
        self._lease_end: float | None = None

    def renew(self, lease_end: float) -> None:
        """Extend the scripts' lease (``time.monotonic``).

        They end with it even if this process is stopped.
        """
        with self._lock:
            self._lease_end = lease_end
            for script in self._running.values():
                _send(script.process, str(lease_end))

    def run(self, task: Task, fields: Fields) -> None:
        """Run a task's script or program and wait for it.

        Raises ``SubmitFailed``, ``BadArgument``, ``CannotStage``, or ``CannotKill`` if it failed and may still
        run in the cluster.
        """
        assert task.submit is not None
        with PrivateFolder() as folder:
            script, directory = prepared(task.submit, fields, folder, remote=task.submit.deploy_mode == "cluster")
            if task.kind == "command":
                submission = self.program(script, fields, directory)
            else:
                submission = self.submission(script, fields, folder)
            process = self._start(task.name, submission, directory.path)
            try:
                last = _pass_on(process)
            except BaseException:
                # At a limit of files or threads. Nobody else would end it, and the next try begins.
                self.end_task(task.name)
                raise
            finally:
                status = process.wait()
                with self._lock:
                    del self._running[task.name]
            if status == 0 and (left := directory.left()):
                sys.stderr.write(f"{left_behind(left)}\n")
            logged = directory.log() if status != 0 else None
        if status != 0:
            if submission.cluster is not None:
                # It may run on without the process that waited for it.
                clusters.end(submission.cluster, [submission.tag])
            how = f"signal {-status}" if status < 0 else f"status {status}"
            name = task.submit.script
            kind, explain = (CommandFailed, of_program) if task.kind == "command" else (SubmitFailed, explained)
            why = explain(last)
            if why.startswith(NOTHING) and logged is not None:
                why = f"{logged[0]} says: {explain(_shortened(logged[1][-LAST_LINES:]))}"
            raise kind(f"{name} ended with {how}: {why}")

    def end(self) -> None:
        """Kill all running scripts and their child processes."""
        with self._lock:
            self._ending = True
            for script in self._running.values():
                _kill(script)

    def end_task(self, task: str) -> None:
        """Kill the task's script, if it is running, and its child processes."""
        with self._lock:
            if task in self._running:
                _kill(self._running[task])

    def submission(self, submit: Script, fields: Fields, folder: Path) -> Submission:
        """How to start the script. Spark settings may be secrets, so they go into files in ``folder``.

        Raises ``BadArgument`` or ``CannotStage``.
        """
        home, remote = SparkHome.of(self._settings), submit.deploy_mode == "cluster"
        environment = self.environment(submit, fields, folder)
        cluster = cluster_of(home, self._launch.pipeline.spark_conf, environment)
        if remote and cluster is None:
            raise BadArgument(
                f"{submit.script} has deploy_mode='cluster', which needs YARN or Kubernetes, but "
                f"RETROFILL_SPARK_SUBMIT_MASTER is {home.master!r}: use deploy_mode='client'"
            )
        conf = self._conf(home, submit, fields)
        attempt = clusters.tag_of(self._launch.installation, self._launch.attempt_id)
        tag = clusters.tag_of_script(attempt, fields.run.id)
        if cluster is not None:
            conf.update(cluster.settings(conf, [attempt, tag], remote=remote))
        if submit.script.endswith(".py") and not remote:
            conf.update(_without_input(conf, folder))
        application = [submit.script, *fields.fill(submit.args)]
        if secrets_in(submit.args):
            application = _hidden(application, folder)
        if submit.main_class is not None:
            application = ["--class", submit.main_class, *application]
        command = [*home.command(conf, folder, submit.deploy_mode), *application]
        if cluster is None or not remote:
            return Submission(command, environment)
        afterwards = ending(self._settings, self._launch.pipeline.spark_conf, tag)
        return Submission(command, environment, cluster, tag, afterwards)

    def program(self, submit: Script, fields: Fields, directory: WorkingDirectory) -> Submission:
        """How to start a command's program. Raises ``BadArgument`` or ``CannotStage``."""
        path = os.environ.get("PATH", os.defpath)
        beside = str(Path(sys.executable).parent)
        if beside not in path.split(os.pathsep):
            # The programs of the packages that its drivers have.
            path = f"{beside}{os.pathsep}{path}"
        environment = {**os.environ, "PATH": path, **self._own_environment(submit, fields)}
        # One that was unpacked into the working directory, or the absolute path of another.
        named = str(directory.path / submit.script) if "/" in submit.script else submit.script
        found = shutil.which(named, path=environment["PATH"])
        if found is None:
            if Path(named).exists():
                raise BadArgument(
                    f"{submit.script} is not executable: begin it with a line like #!/bin/sh, and chmod +x it"
                )
            pool = self._launch.pipeline.pool
            raise BadArgument(
                f"there is no program {submit.script} on this host: install it for the drivers of pool {pool}, or correct its name"
            )
        interpreter = _interpreter(Path(found))
        if interpreter is not None and not Path(interpreter).exists():
            raise BadArgument(f"{submit.script} begins with #!{interpreter}, but this host has no {interpreter}")
        return Submission([found, *fields.fill(submit.args)], environment)

    def _conf(self, home: SparkHome, submit: Script, fields: Fields) -> dict[str, str]:
        """All Spark settings of the script. Its files come after those of the host's configuration."""
        launch = self._launch
        conf = {
            **home.defaults,
            "spark.app.name": f"{launch.pipeline.name} {launch.tag} run {fields.run.id}",
            **self._settings.spark_submit_conf,
            **launch.pipeline.spark_conf,
            **{name: fields.fill_between(value) for name, value in submit.conf.items()},
        }
        for name, more in (
            *((PY_FILES, submit.py_files), (JARS, submit.jars), (PACKAGES, submit.packages)),
            *((FILES, submit.files), (ARCHIVES, submit.archives)),
        ):
            if more:
                conf[name] = ",".join([*filter(None, [conf.get(name)]), *more])
        conf = with_jars(conf, self._settings.spark_jars)
        if (file := packed_file()) is None:
            return conf
        # In a cluster, the file is the interpreter.
        return with_environment(conf, home.master, home.python if file.is_absolute() else str(file), file)

    def environment(self, submit: Script, fields: Fields, folder: Path) -> dict[str, str]:
        """The environment of a script's spark-submit. Raises ``BadArgument`` or ``CannotStage``."""
        inherited = {key: value for key, value in os.environ.items() if key not in _NOT_THE_SCRIPTS}
        of_spark = SparkHome.of(self._settings).environment(folder, inherited)
        return {**inherited, **of_spark, **self._own_environment(submit, fields)}

    def _own_environment(self, submit: Script, fields: Fields) -> dict[str, str]:
        return dict(zip(submit.env, fields.fill(list(submit.env.values()))))

    def _start(self, task: str, submission: Submission, directory: Path) -> subprocess.Popen[str]:
        with self._lock:
            if self._ending:
                raise SubmitFailed("the run is being ended")
            process = subprocess.Popen(
                [*GROUP, *submission.command],
                stdin=subprocess.PIPE,
                # Some print their errors there.
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=submission.environment,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._running[task] = Running(process, in_cluster=submission.cluster is not None)
            _send(process, json.dumps(submission.afterwards))
            if self._lease_end is not None:
                _send(process, str(self._lease_end))
        return process


# By its package's place, which may be an archive.
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from retrofill.driver import submit; submit.end_tagged(sys.argv[2])"
)


def ending(settings: Config, conf: Mapping[str, str], tag: str) -> tuple[list[str], str]:
    """The command of a process that ends what has this tag, and its input, which may have secrets in it.

    ``conf``: the pipeline's Spark settings.
    """
    place = str(Path(retrofill.__file__).parents[1])
    given = json.dumps({"settings": asdict(settings), "conf": dict(conf)}, default=str)
    return [sys.executable, "-c", _PROGRAM, place, tag], given


def end_tagged(tag: str) -> None:
    """End what has this tag. Exits with one line if that cannot be done."""
    given = json.load(sys.stdin)
    try:
        cluster = cluster_of(SparkHome.of(Config.of(given["settings"])), given["conf"], os.environ)
        if cluster is not None:
            clusters.end(cluster, [tag])
    except CannotKill as e:
        sys.exit(str(e))


def _interpreter(program: Path) -> str | None:
    """What its first line says that runs it; the system names only the program if that does not exist."""
    try:
        with program.open("rb") as file:
            first = file.readline(LINE_CHARS)
    except OSError:
        return None
    words = first[2:].split()
    return os.fsdecode(words[0]) if first.startswith(b"#!") and words and words[0].startswith(b"/") else None


def _without_input(conf: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The setting by which the script's Python has a standard input that cannot be read.

    Otherwise that is a pipe of Spark's, on which a script that reads it would wait forever. An empty one would be worse: what
    reads its rows there would succeed without any.
    """
    chosen = conf.get(DRIVER_PYTHON) or conf.get(PYTHON)
    of_environment = '"${PYSPARK_DRIVER_PYTHON:-${PYSPARK_PYTHON:-python3}}"'
    program = folder / "python"
    program.write_text(
        f'#!/bin/sh\nexec {shlex.quote(chosen) if chosen else of_environment} "$@" 0>/dev/null\n', "utf-8"
    )
    program.chmod(0o700)
    # Not where programs in temporary directories are forbidden.
    return {DRIVER_PYTHON: str(program)} if os.access(program, os.X_OK) else {}


def _hidden(application: Sequence[str], folder: Path) -> list[str]:
    """A script with its arguments, as an application with none that others may not see."""
    program, given = folder / "with_arguments.py", folder / "arguments.json"
    program.write_bytes(WITH_ARGUMENTS)
    given.write_text(json.dumps(application), "utf-8")
    return [str(program), str(given)]


def _send(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    if process.stdin.closed:
        return  # it is being killed
    try:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    except OSError:
        return  # it has just exited


def _pass_on(process: subprocess.Popen[str]) -> list[str]:
    """Copy the script's output to our standard error until it exits, then kill its group.

    Returns the last lines, masked.
    """
    last: deque[str] = deque(maxlen=LAST_LINES)
    assert process.stdout is not None
    begins = True
    # In pieces: a progress bar may end no line at all.
    for piece in lines_until_exit(process, process.stdout, MAX_SEARCHED):
        if begins:
            # Of the first piece only: the next one may begin with half of a secret.
            last.append(piece[:MAX_SEARCHED].rstrip())
        begins = piece.endswith("\n")
        sys.stderr.write(piece)
    return _shortened(last)


def _shortened(lines: Iterable[str]) -> list[str]:
    # Masked before they are cut: half of a secret would not be recognized.
    return [masked(line)[:LINE_CHARS] for line in lines]


def _kill(script: Running) -> None:
    process = script.process
    # After the process is reaped, its pid may have been reused.
    if process.poll() is not None:
        return
    if script.in_cluster:
        # The group's leader kills it, and has the application killed: this process may be about to end.
        assert process.stdin is not None
        process.stdin.close()
    else:
        os.killpg(process.pid, signal.SIGKILL)
