"""A driver of one attempt: the command of spark-submit with its settings and environment, and its process and connection."""

from __future__ import annotations

import json
import re
import secrets
import socket
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from retrofill.outputs.kept import AREA
from retrofill.spark import clusters
from retrofill.spark.clusters import KUBERNETES, Cluster
from retrofill.spark.home import ENVIRONMENT_VARIABLE, SparkHome, with_environment
from retrofill.spark.java import with_jars
from retrofill.states import AttemptMode
from retrofill.system.files import PrivateFolder
from retrofill_core.driver_package import SOURCE, archive, entry, package
from retrofill_core.settings import Settings
from retrofill_core.user_code.environments import Unpacked
from run_starter.executors import LaunchRequest, processes
from run_starter.executors.answers import Answers

# Beside this machine's own, of one attempt.
PROGRAM = "once"
PY_FILES = "spark.submit.pyFiles"
# Prefixes of a driver's environment variables. Spark's UI masks those whose names look secret.
DRIVER_ENV = {"yarn": "spark.yarn.appMasterEnv.", KUBERNETES: "spark.kubernetes.driverEnv."}
SECRET_REF = "spark.kubernetes.driver.secretKeyRef."
_HEAP = "spark.driver.memory"
# What Java takes, of at least a megabyte if it is in bytes.
_HEAP_SIZE = re.compile(r"[1-9][0-9]{0,15}[kmgt]|[1-9][0-9]{6,15}", re.ASCII | re.IGNORECASE)
_QUOTED = re.compile(r'["$`\\]')
_TWO_BRACES = re.compile(r"(?<=\{)(?=\{)|(?<=\})(?=\})")
# Folders of this machine do not exist in the cluster.
_NOT_THERE = ("SPARK_HOME",)


def driver_conf(
    home: SparkHome, launch: LaunchRequest, unpacked: Unpacked | None = None, cluster: Cluster | None = None
) -> dict[str, str]:
    """Spark's settings for one driver; the pipeline's take precedence, and its environment over all.

    ``cluster``: where its application is found later.
    """
    settings = home.settings
    assert isinstance(settings, Settings)
    ours = {**settings.spark_submit_conf, **launch.pipeline.spark_conf}
    conf = {
        "spark.ui.enabled": "false",
        **home.defaults,
        "spark.app.name": f"retrofill {launch.pipeline.name} {launch.runs[0].interval_start.isoformat()}",
        **(home.python_of_driver(ours) if settings.spark_submit_deploy_mode == "client" else {}),
        **ours,
    }
    if cluster is not None:
        tag = clusters.tag_of(launch.installation, launch.attempt_id)
        conf |= cluster.settings(conf, [tag], remote=is_remote(settings, launch))
    conf = with_jars(conf, settings.spark_jars)
    if unpacked is None:
        return conf
    # In a cluster, the file is in the driver's folder too.
    python = home.python if settings.spark_submit_deploy_mode == "client" else f"./{unpacked.file.name}"
    return with_environment(conf, home.master, python, unpacked.file)


def in_cluster(home: SparkHome, conf: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of a driver in the cluster: ``conf``, and the variables of its environment.

    Variables that come from a Kubernetes secret there are not sent.
    """
    kind = KUBERNETES if home.master.startswith(KUBERNETES) else "yarn"
    quoted = (lambda value: value) if kind == KUBERNETES else for_yarn
    sent = {
        f"{DRIVER_ENV[kind]}{name}": quoted(value)
        for name, value in environment.items()
        if name not in _NOT_THERE and f"{SECRET_REF}{name}" not in conf
    }
    return sent | dict(conf)


def for_yarn(value: str) -> str:
    """The value of a variable, quoted for the script in which YARN writes it between double quotes.

    YARN replaces two braces itself, so they are kept apart by an end and a new beginning of the quotes.
    """
    return _TWO_BRACES.sub('""', _QUOTED.sub(r"\\\g<0>", value))


def is_remote(settings: Settings, launch: LaunchRequest) -> bool:
    """Whether the driver runs in the cluster. One that only runs scripts needs no Spark of its own."""
    return settings.spark_submit_deploy_mode == "cluster" and not launch.needs_no_spark


def sees_files(settings: Settings, launch: LaunchRequest) -> bool:
    """Whether this machine sees the directories that an attempt publishes or restores, which a driver in the cluster wrote."""
    if settings.spark_submit_deploy_mode != "cluster":
        return True
    return all((Path(output).parent / AREA).is_dir() for run in launch.runs for output in run.outputs)


def to_clear(launch: LaunchRequest) -> tuple[int, ...]:
    """The earlier attempts whose applications in a cluster must have ended before this one begins."""
    if launch.mode != AttemptMode.PUBLISH:
        return launch.earlier
    return () if launch.only_files or launch.pipeline.executor != "spark-submit" else launch.publishers


def refusal(settings: Settings, launch: LaunchRequest) -> str | None:
    """Why no driver of this definition can start, in one line, or ``None``.

    In client mode the size of the heap is an option of the driver's JVM as it stands, and Java knows fewer units than
    Spark. That a JVM did not start looks the same on a machine that cannot start any.
    """
    heap = launch.pipeline.spark_conf.get(_HEAP)
    starts_jvm = launch.pipeline.executor == "spark-submit" and not launch.needs_no_spark
    if heap is None or not starts_jvm or is_remote(settings, launch) or _HEAP_SIZE.fullmatch(heap):
        return None
    return f"spark_conf: {_HEAP} is {heap[:200]!r}, which Java does not accept: use a whole number with k, m, g or t, such as 2g"


def command(
    home: SparkHome,
    launch: LaunchRequest,
    environment: Mapping[str, str],
    folder: Path,
    unpacked: Unpacked | None = None,
    cluster: Cluster | None = None,
) -> list[str]:
    """The command of spark-submit that starts the attempt's driver.

    Its program is sent to YARN, or at the same path in the image. ``folder``: for Spark's settings.
    ``unpacked``: its packed environment, whose interpreter ``home`` has.
    """
    settings = home.settings
    assert isinstance(settings, Settings)
    made = package(settings.home)
    program = entry(made, PROGRAM)
    conf = driver_conf(home, launch, unpacked, cluster)
    if not is_remote(settings, launch):
        return [*home.command(conf, folder, "client"), program]
    if unpacked is not None:
        environment = {**environment, ENVIRONMENT_VARIABLE: f"./{unpacked.file.name}"}
    conf = in_cluster(home, conf, environment)
    if home.master.startswith(KUBERNETES):
        # The image has it.
        program = f"local://{entry(SOURCE.parent, PROGRAM)}"
    else:
        conf = {**conf, PY_FILES: ",".join([*filter(None, [conf.get(PY_FILES)]), archive(made, folder)])}
    return [*home.command(conf, folder, "cluster"), program]


def plain_command(settings: Settings, python: str) -> list[str]:
    """The command of a driver that has no Spark of its own."""
    return [python, entry(package(settings.home), PROGRAM)]


# A driver sends its token at once; strangers may connect if the port is not on loopback.
HANDSHAKE_SECONDS = 5.0
MAX_HANDSHAKE_CHARS = 1000


def handshake(connection: socket.socket, token: str) -> IO[str] | None:
    """What the driver sends, line by line, if its first message is the token."""
    # For reading only: a file for both drops what it has read ahead when it is written to.
    lines = connection.makefile("r", encoding="utf-8")
    try:
        connection.settimeout(HANDSHAKE_SECONDS)
        sent = json.loads(lines.readline(MAX_HANDSHAKE_CHARS) or "{}").get("token")
        connection.settimeout(None)
    except (OSError, ValueError, AttributeError):
        sent = None
    known = isinstance(sent, str) and secrets.compare_digest(sent.encode(), token.encode())
    return lines if known else None


# A driver that is stopped reads nothing, so a message may be on its way to it forever.
ASK_SECONDS = 0.1


@dataclass
class Submitted:
    """One attempt in its own driver, which may be ``remote``: in the cluster.

    ``connection``: set once the driver has connected.
    """

    answers: Answers
    process: subprocess.Popen[str]
    server: socket.socket
    token: str
    folder: PrivateFolder
    remote: bool
    connection: socket.socket | None = None
    ending: bool = False
    why_lost: str | None = None
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def connect(self, connection: socket.socket) -> bool:
        """Store the driver's connection. Returns False if the driver is being ended."""
        with self._writing:
            self.connection = connection
            return not self.ending

    def send(self, message: dict[str, Any]) -> bool:
        """Send one line. Returns False if the driver is being ended or has hung up, which its reader notices too."""
        with self._writing:
            return not self.ending and self._try(message)

    def end(self) -> None:
        """Ask the driver to exit, and kill what is left after a grace period. Returns at once.

        A signal would stop Spark first, and the driver would report the failing tasks.
        """
        if self._ask():
            processes.kill_later(self.process)
        else:
            processes.end(self.process)

    def hang_up(self) -> None:
        """Close the connection, whoever reads or writes there. What has arrived is still read."""
        if self.connection is not None:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def _ask(self) -> bool:
        free = self._writing.acquire(timeout=ASK_SECONDS)
        try:
            before, self.ending = self.ending, True
            return free and not before and self.connection is not None and self._try({"end": True})
        finally:
            if free:
                self._writing.release()

    def _try(self, message: dict[str, Any]) -> bool:
        assert self.connection is not None
        try:
            self.connection.sendall(f"{json.dumps(message)}\n".encode())
        except OSError:
            # Either side has closed the connection.
            return False
        return True
