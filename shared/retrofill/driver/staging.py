"""``run.stage(path)``: where a task writes what becomes visible at ``path`` only after the attempt was accepted."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from retrofill.driver.launch import Launch
from retrofill.driver.publication import own_folder, seal

MAX_OUTPUTS = 1000
# All of them are named in one message.
MAX_OUTPUT_CHARACTERS = 200_000


class CannotStage(ValueError):
    """The path cannot be staged; the message says why and what to do."""


@dataclass(frozen=True)
class _Staged:
    task: str
    folder: Path  # ``folder/new`` is what the task writes


class Staging:
    """The staged outputs of one attempt; tasks call it from their threads."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._lock = threading.Lock()
        self._calls = 0
        self._staged: dict[Path, _Staged] = {}

    def stage(self, task: str, path: str) -> str:
        """A new path to write the folder ``path`` to. Raises ``CannotStage``.

        Called again by the same task, another try, it gives another path, and what was written to the one before is dropped.
        """
        target = local_path(path)
        with self._lock:
            self._check(task, target)
            self._calls += 1
            folder = self._own(target) / f"{self._launch.attempt}.writing-{self._calls}"
            folder.mkdir(parents=True)
            self._staged[target] = _Staged(task, folder)
        return str(folder / "new")

    def staged(self, path: str) -> str:
        """Where an earlier task of this run staged ``path``, to read it. Raises ``CannotStage`` where none did."""
        target = local_path(path)
        with self._lock:
            if target not in self._staged:
                raise CannotStage(f"no task of this run has staged {path}: read the published output instead")
            return str(self._staged[target].folder / "new")

    def seal(self) -> tuple[str, ...]:
        """Complete what was staged; returns the outputs. Raises ``CannotStage`` or ``OSError``."""
        with self._lock:
            for target, staged in self._staged.items():
                if not (staged.folder / "new").is_dir():
                    raise CannotStage(
                        f"task {staged.task!r} staged {target} and wrote no folder there: write to what run.stage returns"
                    )
            for target, staged in self._staged.items():
                seal(staged.folder, target, self._launch.run_id, self._launch.attempt, self._about())
            return tuple(str(target) for target in self._staged)

    def discard(self) -> None:
        """The attempt failed: drop what it wrote."""
        with self._lock:
            for target in self._staged:
                for folder in self._own(target).glob(f"{self._launch.attempt}.*"):
                    shutil.rmtree(folder, ignore_errors=True)

    def _check(self, task: str, target: Path) -> None:
        if len(self._staged) >= MAX_OUTPUTS:
            raise CannotStage(f"a run may stage {MAX_OUTPUTS:,} outputs, not more: stage the folder that they are in")
        if sum(len(str(other)) for other in (*self._staged, target)) > MAX_OUTPUT_CHARACTERS:
            raise CannotStage("the outputs' paths are too long together: stage the folder that they are in")
        for other, staged in self._staged.items():
            if other == target and staged.task != task:
                raise CannotStage(f"task {staged.task!r} stages {target} already: one task writes an output")
            if other in target.parents or target in other.parents:
                raise CannotStage(f"{target} and {other} are one inside the other: stage the outer one only")

    def _own(self, target: Path) -> Path:
        return own_folder(target, self._launch.run_id)

    def _about(self) -> dict[str, str | int]:
        launch = self._launch
        return {
            "pipeline": launch.pipeline.name,
            "backfill_id": launch.backfill_id,
            "run_id": launch.run_id,
            "attempt": launch.attempt,
            "interval_start": launch.interval_start.isoformat(),
            "interval_end": launch.interval_end.isoformat(),
        }


def local_path(path: str) -> Path:
    """The folder that ``path`` names: absolute, or a ``file:`` URI. Raises ``CannotStage`` for any other.

    Publication is by rename, which must be atomic for folders and must fail where the source is gone: what POSIX promises.
    """
    parts = urlsplit(str(path))
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        path = unquote(parts.path)
    elif "://" in str(path) or parts.scheme not in ("", "file"):
        raise CannotStage(
            f"{path} cannot be staged: {parts.scheme}: has no atomic rename of folders. Stage on a local or shared POSIX file "
            "system, or write a table format whose commit is conditional on run.id and run.attempt"
        )
    target = Path(path)
    if not target.is_absolute() or target == Path(target.anchor):
        raise CannotStage(f"{path!r} cannot be staged: give the absolute path of a folder")
    if ".." in target.parts:
        raise CannotStage(f"{path!r} cannot be staged: write it without '..'")
    return target
