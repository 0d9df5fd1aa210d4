"""Jars from Maven Central, downloaded once by the Ivy that Spark brings along, which verifies their checksums."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from retrofill.spark.java import spark_jars, trust_options
from retrofill_core.settings import Settings

Progress = Callable[[str], None]


class FetchFailed(Exception):
    """Jars could not be downloaded."""


@dataclass(frozen=True)
class Artifact:
    """A jar; ``whole``: with all that it depends on. ``size``: of the download."""

    organisation: str
    module: str
    version: str
    size: str
    whole: bool = False

    @property
    def jar(self) -> str:
        return f"{self.module}-{self.version}.jar"


@dataclass(frozen=True)
class Maven:
    """``environment``: of the child processes, which mark them as this stack's."""

    settings: Settings
    java: Path
    progress: Progress
    environment: Mapping[str, str]

    def fetch(self, name: str, artifact: Artifact) -> Path:
        """The directory of the jars, downloaded if needed. ``name``: for people. Raises ``FetchFailed``."""
        cache = cache_folder(self.settings)
        jars = cache / f"{name.lower()}-{artifact.version}"
        if jars.exists():
            return jars
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "fetch.lock").open("w") as lock:
            # Two stacks that start at the same time download once.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not jars.exists():
                self._fetch(cache, jars, name, artifact, lock.fileno())
        return jars

    def _fetch(self, cache: Path, jars: Path, name: str, artifact: Artifact, lock: int) -> None:
        draft = jars.with_name(f"{jars.name}.part")
        shutil.rmtree(draft, ignore_errors=True)
        ivy = next(spark_jars().glob("ivy-*.jar"))
        command = [
            str(self.java), *trust_options(), "-jar", str(ivy),
            "-dependency", artifact.organisation, artifact.module, artifact.version, "-confs", "default",
            # Some dependencies are packaged as bundles, which are also jars.
            "-types", "jar", "bundle", *([] if artifact.whole else ["-notransitive"]),
            "-cache", str(cache / "ivy"), "-retrieve", f"{draft}/[artifact]-[revision](-[classifier]).[ext]",
        ]  # fmt: skip
        tail: list[str] = []
        fetched = 0
        what = f"downloading {name} {artifact.version} (once, {artifact.size})"
        self.progress(what)
        # The child inherits the lock: if this process is killed, others still wait for the child.
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment, pass_fds=[lock]
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                tail = [*tail[-20:], line.strip()]
                if "[SUCCESSFUL" in line:
                    fetched += 1
                    self.progress(f"{what}: {fetched} files")
        if process.returncode != 0 or not (draft / artifact.jar).exists():
            why = next(
                (text for text in reversed(tail) if "UNRESOLVED" in text or "ERROR" in text), " ".join(tail[-3:])
            )
            raise FetchFailed(f"{name} {artifact.version} could not be downloaded from Maven Central: {why[:300]}")
        draft.rename(jars)


def cache_folder(settings: Settings) -> Path:
    """Where downloads are kept, for all stacks of this user."""
    # Imported here: the Spark image starts servers, and downloads nothing.
    import platformdirs

    return settings.cache or Path(platformdirs.user_cache_dir("retrofill"))
