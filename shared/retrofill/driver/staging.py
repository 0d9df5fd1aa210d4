"""``run.stage(path)``: output that becomes visible at ``path`` after the attempt is accepted."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from retrofill.driver.launch import Launch, LaunchedRun
from retrofill.driver.publication import own_folder, seal

MAX_OUTPUTS = 1000
# One message contains all paths.
MAX_OUTPUT_CHARACTERS = 200_000


class CannotStage(ValueError):
    """The path cannot be staged. The message says why and what to do."""


@dataclass(frozen=True)
class _Staged:
    task: str
    folder: Path  # ``folder/new`` is what the task writes


class Staging:
    """The outputs that an attempt stages for one run. Thread-safe."""

    def __init__(self, launch: Launch, run: LaunchedRun) -> None:
        self._launch = launch
        self._run = run
        self._lock = threading.Lock()
        self._calls = 0
        self._staged: dict[Path, _Staged] = {}

    def stage(self, task: str, path: str) -> str:
        """A new path to write the directory ``path`` to. Raises ``CannotStage``.

        A later call by the same task, for a retry, returns another path; output at the previous one
        is dropped.
        """
        target = local_path(path)
        with self._lock:
            self._check(task, target)
            self._calls += 1
            folder = self._own(target) / f"{self._launch.attempt_id}.writing-{self._calls}"
            folder.mkdir(parents=True)
            self._staged[target] = _Staged(task, folder)
        return str(folder / "new")

    def staged(self, path: str) -> str:
        """The directory where an earlier task of this run staged ``path``.

        Raises ``CannotStage`` if none did.
        """
        target = local_path(path)
        with self._lock:
            if target not in self._staged:
                raise CannotStage(f"no task of this run has staged {path}: read the published output instead")
            return str(self._staged[target].folder / "new")

    def seal(self) -> tuple[str, ...]:
        """Seal the staged outputs and return their paths. Raises ``CannotStage`` or ``OSError``."""
        with self._lock:
            for target, staged in self._staged.items():
                if not (staged.folder / "new").is_dir():
                    raise CannotStage(
                        f"task {staged.task!r} staged {target} but wrote no directory: write to the path that run.stage returns"
                    )
            for target, staged in self._staged.items():
                seal(staged.folder, target, self._run.id, self._launch.attempt_id, self._about())
            return tuple(str(target) for target in self._staged)

    def discard(self) -> None:
        """Delete the output of a failed attempt."""
        with self._lock:
            for target in self._staged:
                for folder in self._own(target).glob(f"{self._launch.attempt_id}.*"):
                    shutil.rmtree(folder, ignore_errors=True)

    def _check(self, task: str, target: Path) -> None:
        if len(self._staged) >= MAX_OUTPUTS:
            raise CannotStage(f"a run may stage at most {MAX_OUTPUTS:,} outputs: stage their parent directory")
        if sum(len(str(other)) for other in (*self._staged, target)) > MAX_OUTPUT_CHARACTERS:
            raise CannotStage("the outputs' paths are too long in total: stage their parent directory")
        for other, staged in self._staged.items():
            if other == target and staged.task != task:
                raise CannotStage(f"task {staged.task!r} already stages {target}: only one task may write an output")
            if other in target.parents or target in other.parents:
                raise CannotStage(f"of {target} and {other}, one contains the other: stage only the outer one")

    def _own(self, target: Path) -> Path:
        return own_folder(target, self._run.id)

    def _about(self) -> dict[str, str | int]:
        launch, run = self._launch, self._run
        return {
            "pipeline": launch.pipeline.name,
            "backfill_id": launch.backfill_id,
            "run_id": run.id,
            "attempt": run.attempt,
            "attempt_id": launch.attempt_id,
            "interval_start": run.interval_start.isoformat(),
            "interval_end": run.interval_end.isoformat(),
        }


def local_path(path: str) -> Path:
    """The directory of an absolute path or ``file:`` URI. Raises ``CannotStage`` for anything else.

    Publication needs a rename of directories that is atomic and fails if the source is missing, as
    on POSIX.
    """
    parts = urlsplit(str(path))
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        path = unquote(parts.path)
    elif "://" in str(path) or parts.scheme not in ("", "file"):
        raise CannotStage(
            f"{path} cannot be staged: {parts.scheme}: has no atomic rename of directories; use a local or shared POSIX file "
            "system, or a table format with commits that are conditional on run.id and run.attempt"
        )
    target = Path(path)
    if not target.is_absolute() or target == Path(target.anchor):
        raise CannotStage(f"{path!r} cannot be staged: give the absolute path of a directory")
    if ".." in target.parts:
        raise CannotStage(f"{path!r} cannot be staged: write it without '..'")
    return target
