"""``run.stage(path)``: output that becomes visible at ``path`` after the attempt is accepted."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass, field, replace
from json import dumps
from pathlib import Path
from typing import Any, Collection, Mapping, Sequence

from retrofill.outputs.cannot_stage import CannotStage, local_path
from retrofill.outputs.kept import PLACE, copy, find_before, key_of, put_marker
from retrofill.outputs.places import Claim, Owner, cure, real, refuse_taken
from retrofill.outputs.publication import Written, own_folder, seal
from retrofill.outputs.tables.staging import TableStaging
from retrofill.outputs.tables.sweeping import StagedTables
from retrofill.protocol.launch import Launch, LaunchedRun, Piece, interval_of

MAX_OUTPUTS = 1000
# One message contains all outputs of a run, as JSON. ``RETROFILL_MAX_MESSAGE_BYTES`` has room for these.
MAX_OUTPUTS_BYTES = 200_000


@dataclass(frozen=True)
class _Staged:
    task: str
    run: LaunchedRun
    target: Path  # as the task names it
    folder: Path  # ``folder/new`` is what the task writes
    about: Mapping[str, Any] = field(default_factory=dict)  # more that its marker says


@dataclass(frozen=True)
class _Partitioned:
    """One directory with an output of each run, which Spark writes in one job."""

    task: str
    parent: Path
    folder: Path
    places: Mapping[str, Path]  # by partition
    dropped: Collection[str] = ()  # partitions that the task has staged anew elsewhere
    whole: bool = False  # a partition that is not written becomes an empty one

    def without(self, places: Collection[Path]) -> _Partitioned:
        kept = {name: place for name, place in self.places.items() if place not in places}
        return replace(self, places=kept, dropped={*self.dropped, *(self.places.keys() - kept.keys())})

    def path_of(self, wanted: Path) -> Path | None:
        """Where Spark writes the partition that becomes the directory ``wanted``."""
        return next((self.folder / "new" / name for name, place in self.places.items() if place == wanted), None)


class Staging:
    """The outputs that an attempt stages for the runs of a piece, each by its only path. Thread-safe."""

    def __init__(self, launch: Launch, piece: Piece, tables: StagedTables | None = None) -> None:
        """``tables``: of all pieces of the attempt."""
        self.tables = TableStaging(launch, piece, tables)
        self._launch = launch
        self._runs = piece.runs
        self._lock = threading.Lock()
        self._calls = 0
        self._staged: dict[Path, _Staged] = {}
        self._partitioned: list[_Partitioned] = []
        # Directories that exist before a task has written to them.
        self._made: set[Path] = set()
        # Directories whose output is dropped, by task. Spark may not have read them yet: it reads what it needs.
        self._dropped: dict[Path, str] = {}
        # All directories that contain an output.
        self._around: set[Path] = set()

    def begin_try(self, task: str) -> None:
        """Forget what an earlier try of the task staged: it failed."""
        self.tables.begin_try(task)
        with self._lock:
            self._forget({target for target, staged in self._staged.items() if staged.task == task})
            self._delete_dropped(task)

    def stage(self, task: str, path: str, number: int = 0) -> str:
        """A new path to write the directory ``path`` of a run to. Raises ``CannotStage``.

        A later call by the same task returns another path; output at the previous one is dropped.
        """
        return str(self._stage(task, path, self._runs[number]).folder / "new")

    def _stage(self, task: str, path: str, run: LaunchedRun, **about: Any) -> _Staged:
        target = local_path(path)
        with self._lock:
            self._check(task, target, run)
            refuse_taken([self._claim(target, run, **about)])
            self._forget({real(target)})
            staged = _Staged(task, run, target, self._folder(target, run), about)
            self._add(staged)
        return staged

    def make(self, staged: str) -> None:
        """Make the directory that a task was given, for one that writes a file into it."""
        with self._lock:
            self._made.add(Path(staged))
        Path(staged).mkdir(exist_ok=True)

    def restore(self, task: str, path: str, number: int = 0) -> None:
        """Stage what the run that this one undoes has replaced at ``path``.

        Raises ``NotKept``, ``CannotStage`` or ``OSError``.
        """
        restores = self._runs[number].restores
        assert restores is not None
        undone = key_of(self._launch.installation, restores)
        kept = find_before(Path(path), undone)
        about = {"undoes": undone, "output_of": kept.run, PLACE: kept.place}
        copy(kept, self._stage(task, path, self._runs[number], **about).folder / "new")

    def stage_partitions(self, task: str, path: str, partitions: Sequence[str]) -> str:
        """A new path to write the directories ``partitions`` to, one of each run, in order.

        Each becomes ``path/partition``. Raises ``CannotStage``.
        """
        return self._stage_partitions(task, path, list(zip(partitions, self._runs)))

    def stage_all_partitions(self, task: str, path: str, partitions: Sequence[str]) -> str:
        """A new path to write any of the directories ``partitions`` of a run to.

        All of them are published: what is not written becomes empty. Raises ``CannotStage``.
        """
        return self._stage_partitions(task, path, [(name, self._runs[0]) for name in partitions], whole=True)

    def _stage_partitions(
        self, task: str, path: str, named: Sequence[tuple[str, LaunchedRun]], *, whole: bool = False
    ) -> str:
        parent = local_path(path)
        targets = [(local_path(f"{parent}/{_relative(name)}"), run) for name, run in named]
        places = {name: real(target) for (name, _), (target, _) in zip(named, targets)}
        first: dict[Path, LaunchedRun] = {}
        for target, run in targets:
            other = first.setdefault(real(target), run)
            if other is not run:
                how = cure(self._owner(run), self._owner(other))
                raise CannotStage(f"two intervals have the same partition {target}: {how}")
        with self._lock:
            for target, run in targets:
                self._check(task, target, run, places.values())
            refuse_taken(self._claim(target, run) for target, run in targets)
            self._forget({*places.values()})
            folder = self._folder(*targets[0])
            for target, run in targets:
                self._add(_Staged(task, run, target, folder))
            self._partitioned.append(_Partitioned(task, parent, folder, places, whole=whole))
        return str(folder / "new")

    def staged(self, path: str) -> str:
        """The directory where an earlier task of this run staged ``path``.

        Raises ``CannotStage`` if none did, or if several staged partitions of it.
        """
        place = real(local_path(path))
        with self._lock:
            for each in self._partitioned:
                if (partition := each.path_of(place)) is not None:
                    return str(partition)
            whole = [each for each in self._partitioned if real(each.parent) == place]
            if len(whole) > 1 or any(each.dropped for each in whole):
                raise CannotStage(
                    f"{path} has partitions of several calls of run.stage_partitions and run.stage: read each partition"
                )
            if not whole and place not in self._staged:
                raise CannotStage(f"no task of this run has staged {path}: read the published output instead")
            return str((whole[0] if whole else self._staged[place]).folder / "new")

    def has_staged(self, task: str) -> bool:
        """Whether the task has asked for a place to stage output."""
        with self._lock:
            tasks = {each.task for each in self._partitioned} | {each.task for each in self._staged.values()}
            return task in tasks or self.tables.has_staged(task)

    def seal(self) -> dict[int, tuple[str, ...]]:
        """Seal the staged outputs; returns them by run id: the tables, and the paths of the folders.

        Raises ``CannotStage`` or ``OSError``.
        """
        with self._lock:
            tasks = {each.task for each in self._partitioned} | {each.task for each in self._staged.values()}
            for partitioned in self._partitioned:
                self._distribute(partitioned)
            # Before all else: whoever published there has thrown away what was written.
            refuse_taken(self._claim(staged.target, staged.run, **staged.about) for staged in self._staged.values())
            for staged in self._staged.values():
                new = staged.folder / "new"
                if not new.is_dir() or (new in self._made and not any(new.iterdir())):
                    raise CannotStage(f"task {staged.task!r} {_no_directory(staged)}")
            self._check_complete(tasks)
            outputs = self.tables.outputs()
            for staged in self._staged.values():
                outputs[staged.run.id] = (*outputs.get(staged.run.id, ()), str(staged.target))
            for each in outputs.values():
                _check_number(len(each))
                _check_size(each)
            written = [
                Written(
                    staged.folder, staged.target, self._key(staged.run), {**self._about(staged.run), **staged.about}
                )
                for staged in self._staged.values()
            ]
            seal(written, self._launch.attempt_id)
            self._delete_dropped()
            self.tables.drop_unstaged()
            return outputs

    def own_folders(self) -> set[Path]:
        """The directories of the runs that have what is staged."""
        with self._lock:
            return {own_folder(staged.target, self._key(staged.run)) for staged in self._staged.values()}

    def discard(self) -> None:
        """Delete the output of a failed attempt."""
        self.tables.discard()
        with self._lock:
            self._delete_dropped()
            for staged in self._staged.values():
                for folder in own_folder(staged.target, self._key(staged.run)).glob(f"{self._launch.attempt_id}.*"):
                    shutil.rmtree(folder, ignore_errors=True)
            for partitioned in self._partitioned:
                shutil.rmtree(partitioned.folder, ignore_errors=True)

    def _folder(self, target: Path, run: LaunchedRun) -> Path:
        self._calls += 1
        folder = own_folder(target, self._key(run)) / f"{self._launch.attempt_id}.writing-{self._calls}"
        folder.mkdir(parents=True)
        put_marker(folder, self._about(run))
        return folder

    def _forget(self, places: Collection[Path]) -> None:
        """Drop these outputs. Others that are written in one directory with one of them stay."""
        dropped = [self._staged.pop(place) for place in places if place in self._staged]
        if not dropped:
            return
        without = (each.without(places) for each in self._partitioned)
        self._partitioned = [each for each in without if each.places]
        in_use = {each.folder for each in self._staged.values()}
        self._dropped.update({each.folder: each.task for each in dropped if each.folder not in in_use})
        self._around = {folder for place in self._staged for folder in place.parents}

    def _delete_dropped(self, task: str | None = None) -> None:
        for folder in [folder for folder, of in self._dropped.items() if task in (None, of)]:
            shutil.rmtree(folder, ignore_errors=True)
            del self._dropped[folder]

    def _add(self, staged: _Staged) -> None:
        place = real(staged.target)
        self._staged[place] = staged
        self._around.update(place.parents)

    def _distribute(self, partitioned: _Partitioned) -> None:
        """Make each partition an output of its run. A run without one has no output."""
        base = partitioned.folder / "new"
        if partitioned.whole and not base.is_dir():
            raise CannotStage(
                f"task {partitioned.task!r} wrote nothing to the directory that it was given for partitions of "
                f"{partitioned.parent}: did it write somewhere else?"
            )
        for name, place in partitioned.places.items():
            staged = self._staged[place]
            if partitioned.whole:
                (base / name).mkdir(parents=True, exist_ok=True)
            if (base / name).is_dir():
                folder = self._folder(staged.target, staged.run)
                (base / name).rename(folder / "new")
                self._staged[place] = replace(staged, folder=folder)
            else:
                del self._staged[place]
        for name in partitioned.dropped:
            shutil.rmtree(base / name, ignore_errors=True)
        for left in sorted(base.rglob("*")):
            inside = left.relative_to(base)
            if left.is_file() and not any(map(_is_hidden, inside.parts)):
                raise CannotStage(f"task {partitioned.task!r} {_misplaced(inside, [*partitioned.places])}")
        shutil.rmtree(partitioned.folder, ignore_errors=True)

    def _check_complete(self, tasks: Collection[str]) -> None:
        """Each of the ``tasks``, which called for a place to stage output, has output of all intervals."""
        sparse = {task.name for task in self._launch.pipeline.tasks if task.sparse}
        for task in sorted({*tasks} - sparse):
            having = {staged.run.id for staged in self._staged.values() if staged.task == task}
            without = [run for run in self._runs if run.id not in having]
            if without:
                more = f" and {len(without) - 1} more" if len(without) > 1 else ""
                raise CannotStage(
                    f"task {task!r} staged no output for the interval that starts {without[0].interval_start.isoformat()}{more}: "
                    "stage one for each of run.intervals, or declare the task with sparse=True"
                )

    def _check(self, task: str, target: Path, run: LaunchedRun, together: Collection[Path] = ()) -> None:
        """``together``: the places of all that are staged with it."""
        place = real(target)
        mine = {other for other, staged in self._staged.items() if staged.run is run}
        _check_number(len(mine | {place}))
        same = self._staged.get(place)
        if same is not None and same.task != task:
            raise CannotStage(f"task {same.task!r} already stages {target}: only one task may write an output")
        if same is not None and same.run is not run:
            how = cure(self._owner(run), self._owner(same.run))
            raise CannotStage(f"{target} is already the output of another interval: {how}")
        around = next((other for other in place.parents if other in self._staged or other in together), None)
        if place in self._around:
            around = next(other for other in self._staged if place in other.parents)
        if around is not None:
            raise CannotStage(f"of {target} and {around}, one contains the other: stage only the outer one")

    def _owner(self, run: LaunchedRun) -> Owner:
        owner = Owner.of_run(self._about(run))
        assert owner is not None
        return owner

    def _claim(self, target: Path, run: LaunchedRun, **about: Any) -> Claim:
        return Claim(target, self._key(run), self._launch.attempt_id, self._owner(run), undoes="undoes" in about)

    def _key(self, run: LaunchedRun) -> str:
        return key_of(self._launch.installation, run.id)

    def _about(self, run: LaunchedRun) -> dict[str, str | int]:
        launch, interval = self._launch, interval_of(self._launch, run)
        return {
            "pipeline": launch.pipeline.name,
            "backfill_id": launch.backfill_id,
            "run_id": run.id,
            "run": self._key(run),
            "attempt": run.attempt,
            "attempt_id": launch.attempt_id,
            "interval_start": interval.start.isoformat(),
            "interval_end": interval.end.isoformat(),
        }


def _no_directory(staged: _Staged) -> str:
    """What a task did that wrote no directory."""
    if not (staged.folder / "new").is_file():
        return (
            f"staged {staged.target} but wrote nothing there: write to the path that run.stage returns, or that the "
            "script gets for {stage:PATH}"
        )
    target = staged.target
    return (
        f"wrote a file to {target}, but only directories are staged: stage a directory of the interval and name the file in it, "
        f"like {{stage:{target.with_suffix('')}}}/{target.name}"
    )


def _relative(partition: str) -> str:
    if not partition or partition.startswith("/"):
        raise CannotStage(
            f"the partition {partition!r} is no directory in another: give it a name, like day=2013-01-31"
        )
    return partition


def _is_hidden(name: str) -> bool:
    """Whether readers, such as Spark, do not look at a file or directory of that name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _misplaced(file: Path, partitions: Sequence[str]) -> str:
    expected = partitions[0] if len(partitions) == 1 else f"{partitions[0]} to {partitions[-1]}"
    if file.parent == Path():
        return f"wrote {file} beside the partitions: write it to {expected}, as Spark does with partitionBy"
    return (
        f"wrote {file.parent}, which is the partition of no interval of this run: write only the data of the interval, "
        f"which is in {expected}"
    )


def _check_number(outputs: int) -> None:
    if outputs > MAX_OUTPUTS:
        raise CannotStage(f"a run may stage at most {MAX_OUTPUTS:,} outputs: stage their parent directory")


def _check_size(outputs: Sequence[str]) -> None:
    size = len(dumps(outputs, ensure_ascii=False).encode())
    if size > MAX_OUTPUTS_BYTES:
        raise CannotStage(
            f"the paths and tables that a run stages have {size:,} bytes; the limit is {MAX_OUTPUTS_BYTES:,}: "
            "stage their parent directory"
        )
