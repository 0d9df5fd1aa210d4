"""Applications in clusters, which outlive the process that submitted them: named, found and killed by their attempt.

A later attempt can so end those of earlier ones without knowing which host submitted them.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
import time
from pathlib import Path
from typing import Callable, Mapping, Protocol, Sequence

from retrofill.spark.home import SparkHome
from retrofill.system.private import PrivateFolder

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
