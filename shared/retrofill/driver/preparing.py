"""Prepares one try of a task's script or program: fills in its fields, and makes its working directory."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import zipfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Callable, Mapping, Sequence

from retrofill.errors import first_line
from retrofill.outputs.staging import Staging
from retrofill.protocol.launch import Launch, Piece, Script, interval_of
from retrofill.protocol.script_texts import BadArgument, Values, fill, fill_between, fill_path, typed
from retrofill.sdk.scripts import located
from retrofill.sdk.texts import GIVEN, Table


class Fields:
    """Fills in the texts of one try of a task's script."""

    def __init__(
        self,
        launch: Launch,
        run: Piece,
        staging: Staging,
        task: str,
        tables: Sequence[Table] = (),
        lend: Callable[[Table], str] = lambda table: table.name,
        locate: Callable[[str], str] = str,
    ) -> None:
        """``tables``: those of the task. ``lend``: the table that is written instead of one of them. ``locate``: its directory."""
        self.run = run
        interval = interval_of(launch, run)
        about = {"id": run.id, "backfill_id": launch.backfill_id, "attempt": run.attempt}
        self._staged: dict[str, str] = {}
        self._staging = staging
        self._directories: list[str] = []

        def lent(number: int, name: str) -> str:
            return self._once(f"table {name}", lambda: lend(replace(tables[number], name=name)))

        self._values = Values(
            interval.start,
            interval.end,
            about,
            launch.conf,
            lambda path: self._once(path, lambda: self._directory(staging.stage(task, path))),
            staging.staged,
            lambda path, names: self._once(
                ", ".join([path, *names]), lambda: staging.stage_all_partitions(task, path, names)
            ),
            # Those of the pool are variables of its drivers. The host has checked their names.
            os.environ,
            [table.name for table in tables],
            lent,
            lambda number, name: self._once(f"location {name}", lambda: locate(lent(number, name))),
        )

    def fill(self, texts: Sequence[str]) -> list[str]:
        """The texts with their fields filled in. Raises ``BadArgument`` or ``CannotStage``."""
        return [self._with_directories(text) for text in fill(texts, self._values)]

    def fill_between(self, text: str) -> str:
        """The text, which has braces of its own, with its fields filled in. Raises like ``fill``."""
        return self._with_directories(fill_between(text, self._values))

    def located(self, script: Script, place: Callable[[str], str]) -> Script:
        """The script with the ``place`` of each of its files, whose paths are filled in. Raises ``BadArgument``."""
        return Script.of(located(asdict(script), place, lambda path: fill_path(path, self._values)))

    def parameters(self, own: Mapping[str, object]) -> dict[str, object]:
        """The values of a file of SQL's parameters, by name. Raises like ``fill``."""
        return typed({**GIVEN, **own}, self._values)

    def _directory(self, staged: str) -> str:
        self._directories.append(staged)
        return staged

    def _with_directories(self, text: str) -> str:
        """The text. A staged directory in which it names a file is made: few programs do that themselves."""
        for each in self._directories:
            if f"{each}/" in text:
                self._staging.make(each)
        return text

    def _once(self, what: str, stage: Callable[[], str]) -> str:
        """It is staged once, however often it is named."""
        if what not in self._staged:
            self._staged[what] = stage()
        return self._staged[what]


# Where Spark keeps tables and their catalog, unless a setting names another place.
_TABLES = ("spark-warehouse", "metastore_db")
_SHOWN = 5
_TAIL_BYTES = 65_536


@dataclass(frozen=True)
class WorkingDirectory:
    """``placed``: what was put there before the script began. ``own``: whether it is removed afterwards."""

    path: Path
    own: bool
    placed: frozenset[str] = frozenset()

    def left(self) -> list[str]:
        """What the script left in a directory that is to be removed. Raises ``BadArgument`` if that is tables."""
        names = sorted({each.name for each in self.path.iterdir()} - self.placed) if self.own else []
        tables = [name for name in names if name in _TABLES and any((self.path / name).glob("*"))]
        if tables:
            raise BadArgument(
                f"it wrote tables into {tables[0]} of its working directory, which is removed: set spark.sql.warehouse.dir and "
                "the metastore where Spark runs, or give the task a cwd"
            )
        return names

    def log(self) -> tuple[str, list[str]] | None:
        """The newest log that was left in a directory that is to be removed: its name and last lines."""
        logs = [each for each in self.path.rglob("*.log") if each.is_file()] if self.own else []
        logs = [
            each for each in logs if each.relative_to(self.path).parts[0] not in self.placed and each.stat().st_size
        ]
        if not logs:
            return None
        newest = max(logs, key=lambda each: each.stat().st_mtime)
        with newest.open("rb") as file:
            file.seek(max(0, newest.stat().st_size - _TAIL_BYTES))
            # What precedes the first line may be half of a secret.
            lines = file.read().decode("utf-8", "replace").splitlines()[1 if file.tell() > _TAIL_BYTES else 0 :]
        return str(newest.relative_to(self.path)), lines


def prepared(script: Script, fields: Fields, folder: Path, *, remote: bool = False) -> tuple[Script, WorkingDirectory]:
    """Make the working directory in the private ``folder``. Returns the script with the files to pass to Spark.

    ``remote``: it runs in the cluster, where Spark puts all of them. Raises ``BadArgument``, and what a template that stages
    raises.
    """
    own = folder / "work"
    own.mkdir()
    files = tuple(_placed(each, own, "file", _copy) for each in script.files)
    archives = tuple(_archive(each, own, unpacks=not remote and script.cwd is None) for each in script.archives)
    rendered = tuple(
        _placed(each, own, "template", lambda path, to: _render(path, to, fields)) for each in script.templates
    )
    if script.cwd is not None and not Path(script.cwd).is_dir():
        raise BadArgument(f"cwd: there is no directory {script.cwd}")
    # Otherwise the working directory has the rendered files, which may have secrets in them.
    of_spark = [each for each in (*files, *(rendered if remote else ())) if "://" in each or Path(each).is_file()]
    placed = frozenset(each.name for each in own.iterdir())
    made = WorkingDirectory(own if script.cwd is None else Path(script.cwd), script.cwd is None, placed)
    return replace(script, files=tuple(of_spark), archives=archives), made


def left_behind(names: list[str]) -> str:
    """Files that were left, in one line."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"removed with the working directory: {', '.join(names[:_SHOWN])}{more}"


def _placed(address: str, own: Path, kind: str, put: Callable[[str, Path], object]) -> str:
    """The path of the file in the working directory; addresses of other file systems are Spark's matter."""
    path, _, name = address.partition("#")
    if "://" in path:
        return address
    to = own / (name or Path(path).name)
    if to.is_symlink() or to.exists():
        raise BadArgument(f"{kind} {path}: the working directory has another {to.name}: use path#name")
    try:
        put(path, to)
    except (OSError, UnicodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is no text in UTF-8"
        raise BadArgument(f"{kind} {path}: {why}") from e
    return str(to)


def _copy(path: str, to: Path) -> None:
    """No link: Spark would see through it to the other name, and a program might write to it."""
    if Path(path).is_dir():
        shutil.copytree(path, to)
    else:
        shutil.copy(path, to)
    for each in (to, *to.rglob("*")):
        # That of shipped code is read-only.
        each.chmod(each.stat().st_mode | 0o200)


def _render(path: str, to: Path, fields: Fields) -> None:
    text = Path(path).read_text("utf-8")
    try:
        filled = fields.fill_between(text)
    except BadArgument as e:
        raise BadArgument(f"template {path}: {e}") from e
    to.write_text(filled, "utf-8")
    # A program stays one. That of shipped code is read-only.
    to.chmod(Path(path).stat().st_mode & 0o777 | 0o200)


def _archive(address: str, own: Path, *, unpacks: bool) -> str:
    """The address for Spark, with the name under which executors find what it unpacks there."""
    path, mark, _ = address.partition("#")
    if unpacks:
        _placed(address, own, "archive", _unpack)
    return address if "://" in path or mark else f"{path}#{Path(path).name}"


def _unpack(path: str, to: Path) -> None:
    Path(path).stat()
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as zipped:
                for entry in zipped.infolist():
                    made = Path(zipped.extract(entry, to))
                    # Programs in it stay programs.
                    made.chmod(made.stat().st_mode | (entry.external_attr >> 16 & 0o111))
        else:
            with tarfile.open(path) as tarred:
                if sys.version_info >= (3, 12):
                    tarred.extractall(to, filter="tar")
                else:
                    tarred.extractall(to)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as e:
        raise BadArgument(f"archive {path} cannot be unpacked: {first_line(e)}: give a zip or tar file") from e
