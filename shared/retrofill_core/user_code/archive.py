"""Reproducible archives of user code: the same files give the same bytes on every machine."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from retrofill.sdk.scripts import meant
from retrofill.user_code.loading import absolute
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.user_code.source import Source

T = TypeVar("T")
# Data files next to the code are included up to this size; others need --include.
DATA_SUFFIXES = frozenset({".sql", ".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".csv", ".tsv", ".txt", ".j2"})
DATA_MAX_BYTES = 100_000
MAX_FILES = 10_000
# The earliest time that the format supports, instead of the files' own times.
_NO_TIME = (1980, 1, 1, 0, 0, 0)
_READABLE, _EXECUTABLE = 0o644 << 16, 0o755 << 16
# By their content, as modes differ among machines.
_PROGRAMS = (b"#!", b"\x7fELF")


class CannotArchive(Exception):
    """The code cannot be archived. The message is one line and says what to do."""


@dataclass(frozen=True)
class Archive:
    """``content`` is a zip of ``files`` files with ``size`` bytes in total."""

    content: bytes
    files: int
    size: int

    @property
    def sha256(self) -> str:
        """The archive's name: the hash of its content, in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()


def files_of(root: Path, source: Source, include: Sequence[Path] = ()) -> dict[str, Path]:
    """The files that the pipelines of one file or module need, by name in the archive.

    Raises ``CannotArchive``.
    These are: the Python files in ``root`` (for a module, in its package) and in packages there,
    with small data files next to them; modules imported from there; the tasks' scripts and their
    files if they are inside ``root``; and ``include``.
    """
    found: dict[str, Path] = {}
    for path in (*_beside(root, source.definitions), *_imported(root, source), *_scripts(root, source.definitions)):
        found[path.relative_to(root).as_posix()] = path
        if len(found) > MAX_FILES:
            raise CannotArchive(
                f"{root} has more than {MAX_FILES:,} files of code: give the pipeline its own directory"
            )
    for given in include:
        for name, path in _included(root, given):
            if found.setdefault(name, path).resolve() != path.resolve():
                raise CannotArchive(f"--include {given}: the archive already has another {name}: rename one of the two")
    for name in found:
        _check_name(root, name)
        for folder in PurePosixPath(name).parents:
            if str(folder) in found:
                raise CannotArchive(f"the archive would have both a file {folder} and a directory {folder}: rename one")
    return found


def _check_name(root: Path, name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise CannotArchive(f"{name!a} in {root}: its name is not UTF-8: rename it") from None


def build(files: Mapping[str, Path], max_bytes: int) -> Archive:
    """The archive of files by name.

    Raises ``CannotArchive`` if one cannot be read or the total is too large.
    """
    _check_sizes(files, max_bytes)
    contents = {name: _of(files[name], Path.read_bytes) for name in sorted(files)}
    written = io.BytesIO()
    # Not compressed, because compressor versions differ in their output.
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as zipped:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(name, _NO_TIME)
            entry.create_system, entry.external_attr = 3, _EXECUTABLE if content.startswith(_PROGRAMS) else _READABLE
            zipped.writestr(entry, content)
    return Archive(written.getvalue(), len(contents), sum(map(len, contents.values())))


def _check_sizes(files: Mapping[str, Path], max_bytes: int) -> None:
    """Checked before reading, because the files might not fit in memory."""
    sizes = {name: _of(path, Path.stat).st_size for name, path in files.items()}
    size = sum(sizes.values())
    if size > max_bytes:
        largest = max(sizes, key=lambda name: sizes[name])
        raise CannotArchive(
            f"the code has {size:,} bytes, more than RETROFILL_CODE_MAX_BYTES ({max_bytes:,}); the largest file is {largest} "
            f"({sizes[largest]:,}): move data to where tasks can read it, and the pipeline to its own directory"
        )


def _of(path: Path, read: Callable[[Path], T]) -> T:
    try:
        return read(path)
    except OSError as e:
        raise CannotArchive(f"{path} cannot be read: {e.strerror}") from e


def _beside(root: Path, definitions: Sequence[PipelineDefinition]) -> Iterator[Path]:
    """For a file: its directory with the packages in it.

    For a module: its package, if it has one.
    """
    folders = {_package(root, each.code.module) for each in definitions}
    for folder in folders:
        yield from _code_in(folder, whole=folder != root)
    for each in definitions:
        if each.code.file is not None:
            yield Path(each.code.file)


def _package(root: Path, module: str | None) -> Path:
    inside = root / (module or "").partition(".")[0]
    return inside if module is not None and inside.is_dir() else root


def _code_in(folder: Path, *, whole: bool, data: bool = False) -> Iterator[Path]:
    """Python files and small data files next to them, or with ``data`` any of these, recursively.

    Unless ``whole``, only packages are entered, and directories whose names are imported: the directory may be a user's home.
    """
    subfolders, files = _entries(folder)
    code = [path for path in files if path.suffix == ".py"]
    yield from code
    if code or data:
        yield from (path for path in files if _is_small_data(path))
    if whole:
        entered = subfolders
    else:
        entered = [each for each in subfolders if (each / "__init__.py").is_file()]
        entered += _imported_folders(code, entered, [each for each in subfolders if each not in entered])
    for subfolder in entered:
        yield from _code_in(subfolder, whole=True, data=data)


def _imported_folders(code: Sequence[Path], packages: Sequence[Path], others: Sequence[Path]) -> list[Path]:
    """Those of the other directories that the code or a package imports, or one of them that is imported."""
    found: list[Path] = []
    reading = [*code, *(path for package in packages for path in _code_in(package, whole=True))]
    while others and reading:
        names = {name for path in reading if path.suffix == ".py" for name in _names_imported(path)}
        new = [each for each in others if each.name in names]
        found += new
        others = [each for each in others if each not in new]
        reading = [path for each in new for path in _code_in(each, whole=True)]
    return found


def _names_imported(path: Path) -> Iterator[str]:
    """The first names of all modules that a file imports, wherever in its text."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        # Of a template, or for another Python. It is shipped nevertheless.
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield node.module.partition(".")[0]


def _is_small_data(path: Path) -> bool:
    return path.suffix in DATA_SUFFIXES and path.stat().st_size <= DATA_MAX_BYTES


def _imported(root: Path, source: Source) -> Iterator[Path]:
    """Modules that were imported from ``root`` with the code, in packages or not."""
    for file in source.imported:
        if file.endswith(".py") and _is_inside(path := Path(file).absolute(), root):
            yield path


def _is_inside(path: Path, root: Path) -> bool:
    return path.is_relative_to(root) and not any(_is_hidden(part) for part in path.relative_to(root).parts)


def _scripts(root: Path, definitions: Sequence[PipelineDefinition]) -> Iterator[Path]:
    """Scripts, what they name, and what they may import: as a pipeline, a script finds what is beside it."""
    scripts = [task.submit for definition in definitions for task in definition.tasks if task.submit is not None]
    for script in scripts:
        for named in script.needed:
            for path in meant(named):
                if path.is_relative_to(root) and path.is_file():
                    yield path
                elif path.is_relative_to(root):
                    yield from _code_in(path, whole=True, data=True) if named == script.cwd else _all_in(path)
        if script.script.endswith(".py") and (path := Path(script.script)).is_relative_to(root) and path.is_file():
            yield from _code_in(path.parent, whole=False)
            yield from _from_above(path.parent, root)


def _from_above(folder: Path, root: Path) -> Iterator[Path]:
    """What the code of a folder imports from those above it, to which a script may point ``sys.path``."""
    code = [path for path in _code_in(folder, whole=False) if path.suffix == ".py"]
    for above in folder.parents:
        if not above.is_relative_to(root):
            return
        subfolders, files = _entries(above)
        new = [path for each in _imported_folders(code, [], subfolders) for path in _code_in(each, whole=True)]
        names = {name for path in (*code, *new) if path.suffix == ".py" for name in _names_imported(path)}
        yield from (*new, *(path for path in files if path.suffix == ".py" and path.stem in names))


def _included(root: Path, given: Path) -> Iterable[tuple[str, Path]]:
    """A file, or all files of a directory, by name in the archive.

    Names are relative to ``root``, or to the parent of ``given`` if it is outside.
    """
    path = absolute(given)
    if not path.exists():
        raise CannotArchive(f"--include {given}: no such file or directory")
    above = root if path.is_relative_to(root) else path.parent
    return [(each.relative_to(above).as_posix(), each) for each in ([path] if path.is_file() else _all_in(path))]


def _all_in(folder: Path) -> Iterator[Path]:
    subfolders, files = _entries(folder)
    yield from files
    for subfolder in subfolders:
        yield from _all_in(subfolder)


def _entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """Subdirectories and files, without hidden, compiled, installed and unreadable ones."""
    folders, files = [], []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as e:
        raise CannotArchive(f"{folder} cannot be read: {e.strerror}") from e
    for entry in entries:
        path = folder / entry.name
        if _is_hidden(entry.name):
            continue
        # A symlink to a directory may form a cycle.
        if entry.is_dir(follow_symlinks=False):
            if not (path / "pyvenv.cfg").exists():
                folders.append(path)
        elif entry.is_file() and path.suffix != ".pyc" and os.access(path, os.R_OK):
            files.append(path)
    return folders, files


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in ("__pycache__", "node_modules")


def archive_of(source: Source, include: Sequence[Path], max_bytes: int) -> Archive | None:
    """The archive of the pipelines of one file or module; ``None`` for an installed package."""
    return None if source.root is None else build(files_of(source.root, source, include), max_bytes)
