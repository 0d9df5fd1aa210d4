"""An archive of the user's code: the same files make the same bytes, on every machine and at every time."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from retrofill.domain.pipeline import PipelineDefinition
from retrofill.user_code.places import root_of

T = TypeVar("T")
# Beside the code, files of these kinds up to this size go along. Whatever else is needed is named.
DATA_SUFFIXES = frozenset({".sql", ".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".csv", ".tsv", ".txt", ".j2"})
DATA_MAX_BYTES = 100_000
MAX_FILES = 10_000
# The first moment that the format knows: times of files are no content.
_NO_TIME = (1980, 1, 1, 0, 0, 0)
_READABLE = 0o644 << 16


class CannotArchive(Exception):
    """The code cannot be put into an archive; the message is one line that says what to do."""


@dataclass(frozen=True)
class Archive:
    """What drivers get: ``content`` is a zip of ``files`` files with ``size`` bytes."""

    content: bytes
    files: int
    size: int

    @property
    def sha256(self) -> str:
        """Its name: the hash of its content, in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()


def files_of(root: Path, definitions: Sequence[PipelineDefinition], include: Sequence[Path] = ()) -> dict[str, Path]:
    """What the pipelines of one file or module need, by its name in the archive. Raises ``CannotArchive``.

    That is: the Python files of ``root`` (of a module: of its package) and of the packages in there, and small data files
    beside them; what was imported from there; the scripts of their tasks, where they are inside; and ``include``.
    """
    found: dict[str, Path] = {}
    for path in (*_beside(root, definitions), *_imported(root), *_scripts(root, definitions)):
        found[path.relative_to(root).as_posix()] = path
        if len(found) > MAX_FILES:
            raise CannotArchive(
                f"{root} has more than {MAX_FILES:,} files of code: give the pipeline a folder of its own"
            )
    for given in include:
        for name, path in _included(root, given):
            if found.setdefault(name, path).resolve() != path.resolve():
                raise CannotArchive(f"--include {given}: there is another {name} in the archive: rename one of the two")
    return found


def build(files: Mapping[str, Path], max_bytes: int) -> Archive:
    """The archive of files by name. Raises ``CannotArchive`` for one that cannot be read, or is too much together."""
    _check_sizes(files, max_bytes)
    contents = {name: _of(files[name], Path.read_bytes) for name in sorted(files)}
    written = io.BytesIO()
    # Not compressed: compressors of different versions make different bytes.
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as zipped:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(name, _NO_TIME)
            entry.create_system, entry.external_attr = 3, _READABLE
            zipped.writestr(entry, content)
    return Archive(written.getvalue(), len(contents), sum(map(len, contents.values())))


def _check_sizes(files: Mapping[str, Path], max_bytes: int) -> None:
    """Before anything is read: a folder may have more in it than memory holds."""
    sizes = {name: _of(path, Path.stat).st_size for name, path in files.items()}
    size = sum(sizes.values())
    if size > max_bytes:
        largest = max(sizes, key=lambda name: sizes[name])
        raise CannotArchive(
            f"the code has {size:,} bytes, more than RETROFILL_CODE_MAX_BYTES ({max_bytes:,}); the largest file is {largest} "
            f"({sizes[largest]:,}): put data where tasks can read it, and the pipeline into a folder of its own"
        )


def _of(path: Path, read: Callable[[Path], T]) -> T:
    try:
        return read(path)
    except OSError as e:
        raise CannotArchive(f"{path} cannot be read: {e.strerror}") from e


def _beside(root: Path, definitions: Sequence[PipelineDefinition]) -> Iterator[Path]:
    """Of a file its folder, with the packages in it; of a module its package, where it is in one."""
    folders = {_package(root, each.code.module) for each in definitions}
    for folder in folders:
        yield from _code_in(folder, whole=folder != root)
    for each in definitions:
        if each.code.file is not None:
            yield Path(each.code.file)


def _package(root: Path, module: str | None) -> Path:
    inside = root / (module or "").partition(".")[0]
    return inside if module is not None and inside.is_dir() else root


def _code_in(folder: Path, *, whole: bool) -> Iterator[Path]:
    """Python files and small data beside them; inside of packages alone, unless ``whole``: a folder may be a home."""
    subfolders, files = _entries(folder)
    code = [path for path in files if path.suffix == ".py"]
    yield from code
    if code:
        yield from (path for path in files if _is_small_data(path))
    for subfolder in subfolders:
        if whole or (subfolder / "__init__.py").is_file():
            yield from _code_in(subfolder, whole=True)


def _is_small_data(path: Path) -> bool:
    return path.suffix in DATA_SUFFIXES and path.stat().st_size <= DATA_MAX_BYTES


def _imported(root: Path) -> Iterator[Path]:
    """What importing the code imported from its folder, in packages or not."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and _is_inside(path := Path(file).absolute(), root):
            yield path


def _is_inside(path: Path, root: Path) -> bool:
    return path.is_relative_to(root) and not any(_is_hidden(part) for part in path.relative_to(root).parts)


def _scripts(root: Path, definitions: Sequence[PipelineDefinition]) -> Iterator[Path]:
    for definition in definitions:
        for task in definition.tasks:
            if task.submit is not None and (path := Path(task.submit.script)).is_relative_to(root) and path.is_file():
                yield path


def _included(root: Path, given: Path) -> Iterable[tuple[str, Path]]:
    """A file, or a folder with all that is in it: under its place in the root, or at the top where it is elsewhere."""
    path = given.absolute()
    if not path.exists():
        raise CannotArchive(f"--include {given}: there is no such file or folder")
    above = root if path.is_relative_to(root) else path.parent
    return [(each.relative_to(above).as_posix(), each) for each in ([path] if path.is_file() else _all_in(path))]


def _all_in(folder: Path) -> Iterator[Path]:
    subfolders, files = _entries(folder)
    yield from files
    for subfolder in subfolders:
        yield from _all_in(subfolder)


def _entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """Folders and files that may be somebody's code: nothing hidden, compiled, installed or unreadable."""
    folders, files = [], []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as e:
        raise CannotArchive(f"{folder} cannot be read: {e.strerror}") from e
    for entry in entries:
        path = folder / entry.name
        if _is_hidden(entry.name):
            continue
        # A link to a folder may lead back to where we are.
        if entry.is_dir(follow_symlinks=False):
            if not (path / "pyvenv.cfg").exists():
                folders.append(path)
        elif entry.is_file() and path.suffix != ".pyc" and os.access(path, os.R_OK):
            files.append(path)
    return folders, files


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in ("__pycache__", "node_modules")


def archive_of(
    definitions: Sequence[PipelineDefinition], include: Sequence[Path], max_bytes: int
) -> tuple[Path, Archive] | None:
    """The root and archive of the pipelines of one file or module; ``None`` where that is an installed package's."""
    root = root_of(definitions[0].code)
    return None if root is None else (root, build(files_of(root, definitions, include), max_bytes))
