"""Applications in clusters, which outlive the process that submitted them: named, found and killed by their attempt.

A later attempt can so end those of earlier ones without knowing which host submitted them.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterator, Mapping, Protocol, Sequence

from retrofill.spark.home import SparkHome
from retrofill.system.files import PrivateFolder

PREFIX = "retrofill-"
# Of one call of a cluster's client, and of waiting until applications have ended.
CALL_SECONDS = 120.0
END_SECONDS = 180.0
REASON_CHARS = 500


class CannotKill(Exception):
    """The cluster did not answer, refused, or still runs an application. The message is one line."""


class Cluster(Protocol):
    """A cluster whose applications are named by tags."""

    def settings(self, conf: Mapping[str, str], tags: Sequence[str], *, remote: bool) -> dict[str, str]:
        """What Spark needs so that an application has these tags, runs once, and is waited for.

        ``conf``: its other settings. ``tags``: that of its attempt and, last, its own, which may be
        the same. ``remote``: its driver runs in the cluster.
        """

    def live(self, tags: Sequence[str]) -> list[str]:
        """The ids of applications with one of these tags that have not ended. Raises ``CannotKill``."""

    def kill(self, ids: Sequence[str]) -> None:
        """Request their end. Raises ``CannotKill``."""


def tag_of(installation: str, attempt_id: int) -> str:
    """The tag of all applications of an attempt. Installations that share a cluster number theirs alike."""
    return f"{PREFIX}{hashlib.sha256(installation.encode()).hexdigest()[:12]}-{attempt_id}"


def tag_of_script(attempt_tag: str, run_id: int) -> str:
    """A new tag of one try of a script: two tries have two applications."""
    return f"{attempt_tag}-{run_id}-{secrets.token_hex(4)}"


def end(cluster: Cluster, tags: Sequence[str], seconds: float = END_SECONDS) -> list[str]:
    """Kill the applications with one of these tags, and wait until the cluster says that they have ended.

    Returns their ids. Raises ``CannotKill``, also if one has not ended after ``seconds``.
    """
    until = time.monotonic() + seconds
    killed: dict[str, None] = {}
    while tags and (ids := cluster.live(tags)):
        if time.monotonic() > until:
            raise CannotKill(f"{', '.join(ids)} did not end within {seconds:g} s")
        cluster.kill(ids)
        killed.update(dict.fromkeys(ids))
    return list(killed)


def ask(home: SparkHome, environment: Mapping[str, str], command: Callable[[Path], Sequence[str]]) -> str:
    """All that a client of the cluster prints. ``command`` may put private files into the folder that it is given.

    Raises ``CannotKill``.
    """
    with PrivateFolder() as folder:
        variables = {**environment, **home.environment(folder, environment)}
        words = command(folder)
        try:
            done = subprocess.run(
                words,
                env=variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=CALL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as e:
            raise CannotKill(f"{home.master} did not answer within {CALL_SECONDS:g} s") from e
        except OSError as e:
            raise CannotKill(f"{words[0]}: {os.strerror(e.errno or 0)}") from e
    if done.returncode != 0:
        raise CannotKill(f"{home.master} cannot be asked: {_reason(done.stderr or done.stdout)}")
    return f"{done.stdout}\n{done.stderr}"


def _reason(printed: str) -> str:
    """The line that says most: a JVM's first exception, or else the last line."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()] or ["it does not say why"]
    named = [line for line in lines if "Exception" in line and not line.startswith("at ")]
    return (named or lines[-1:])[0][:REASON_CHARS]


KUBERNETES = "k8s://"
NAMESPACE = "spark.kubernetes.namespace"
POD = "spark.kubernetes.driver.pod.name"
_ENDED = ("Succeeded", "Failed")
# As Spark describes a pod. Neither labels nor names of volumes may contain the words before the colons.
_STATE = re.compile(r"^\s*pod name: (\S+)$.*?^\s*phase: (\S+)$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Kubernetes:
    """Implements ``Cluster``. ``conf``: Spark's settings, with the namespace and the login."""

    home: SparkHome
    environment: Mapping[str, str] = field(repr=False)
    conf: Mapping[str, str] = field(repr=False)

    @property
    def _namespace(self) -> str:
        return self.conf.get(NAMESPACE, "default")

    def settings(self, conf: Mapping[str, str], tags: Sequence[str], *, remote: bool) -> dict[str, str]:  # noqa: ARG002
        if not remote:
            # The driver is our process, and its executors end with their connection to it.
            return {}
        # Where it is looked for, whatever a script's own settings say.
        found = {POD: tags[-1], NAMESPACE: self._namespace}
        return {**found, "spark.kubernetes.submission.waitAppCompletion": "true"}

    def live(self, tags: Sequence[str]) -> list[str]:
        states = _STATE.findall(self._ask("--status", f"{PREFIX}*"))
        return sorted(
            name
            for name, phase in states
            if phase not in _ENDED and any(name == tag or name.startswith(f"{tag}-") for tag in tags)
        )

    def kill(self, ids: Sequence[str]) -> None:
        for id in ids:
            self._ask("--kill", id)

    def _ask(self, what: str, pods: str) -> str:
        return ask(
            self.home,
            self.environment,
            lambda folder: [*self.home.command(self.conf, folder, "cluster"), what, f"{self._namespace}:{pods}"],
        )


YARN = "yarn"
TAGS = "spark.yarn.tags"
_CLIENT = ("org.apache.hadoop.yarn.client.cli.ApplicationCLI", "application")
# All states before the end: one that is being submitted will run.
_LIVE = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
# Linux starts no program with an argument of more than 131,071 bytes, and a tag has about 30 and up to 63.
_PER_CALL = 500
# The first column of its table; names of applications may be anything.
_ID = re.compile(r"^\s*(application_\d+_\d+)\s", re.MULTILINE)


@dataclass(frozen=True)
class Yarn:
    """Implements ``Cluster``. ``environment``: of Hadoop's client."""

    home: SparkHome
    environment: Mapping[str, str] = field(repr=False)

    def settings(self, conf: Mapping[str, str], tags: Sequence[str], *, remote: bool) -> dict[str, str]:
        theirs = [tag for tag in conf.get(TAGS, "").split(",") if tag]
        once = {"spark.yarn.maxAppAttempts": "1", "spark.yarn.submit.waitAppCompletion": "true"}
        return {TAGS: ",".join(dict.fromkeys([*theirs, *tags])), **(once if remote else {})}

    def live(self, tags: Sequence[str]) -> list[str]:
        asked = (self._ask("-list", "-appTags", ",".join(some), "-appStates", _LIVE) for some in _parts(tags))
        return sorted({id for answer in asked for id in _ID.findall(answer)})

    def kill(self, ids: Sequence[str]) -> None:
        """Returns once YARN has recorded their end."""
        for some in _parts(ids):
            self._ask("-kill", *some)

    def _ask(self, *arguments: str) -> str:
        program = str(self.home.folder / "bin" / "spark-class")
        return ask(self.home, self.environment, lambda _: [program, *_CLIENT, *arguments])


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """As many at a time as one call takes."""
    return (names[at : at + _PER_CALL] for at in range(0, len(names), _PER_CALL))


def cluster_of(home: SparkHome, conf: Mapping[str, str], environment: Mapping[str, str]) -> Cluster | None:
    """The cluster of spark-submit. ``None``: an application there ends with its driver, which is our process.

    ``conf``: more settings, above those of the host.
    """
    if home.master == YARN:
        return Yarn(home, environment)
    if home.master.startswith(KUBERNETES):
        return Kubernetes(home, environment, {**home.defaults, **home.settings.spark_submit_conf, **conf})
    return None
