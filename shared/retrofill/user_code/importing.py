"""Imports user code in a warm process, and reimports it after a change.

Code from the code store is imported from the directory it was unpacked into. Before code with
another hash is imported, the previous modules are removed, so that modules with the same name do
not mix.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Callable, Dict, Protocol, Sequence, Tuple

from retrofill.pipeline import Pipeline
from retrofill.user_code.loading import PipelineFileError, import_file
from retrofill.user_code.paths import is_inside
from retrofill.user_code.places import is_users

# Module name → its file and the file's digest.
Files = Dict[str, Tuple[str, str]]
# Returns the directory with the content of the archive with this hash.
Unpacked = Callable[[str], Path]


class CodeMoved(Exception):
    """The pipeline or script is no longer at the location in the applied definition."""


class CodeUnavailable(Exception):
    """A run's archive is missing, corrupt or cannot be unpacked.

    The run must not use other code.
    """


class Location(Protocol):
    """Where a pipeline's code is (the services' ``CodeLocation``)."""

    @property
    def file(self) -> str | None: ...
    @property
    def module(self) -> str | None: ...
    @property
    def attribute(self) -> str: ...
    @property
    def sha256(self) -> str | None: ...
    @property
    def root(self) -> str | None: ...


class Code:
    """The user modules of this process.

    A change in any of their files, or another archive, reimports all of them.
    """

    def __init__(self, unpacked: Unpacked) -> None:
        self._unpacked = unpacked
        self._modules: dict[str, ModuleType] = {}
        self._files: Files = {}
        # The current modules' archive, and the directories added to the path for them.
        self._sha256: str | None = None
        self._folders: set[str] = set()
        self._before = frozenset(sys.modules)
        self._late = _LateImports(self._folders)
        # Cached bytecode is validated by size and seconds: it would miss an edit within a second.
        sys.dont_write_bytecode = True

    def pipeline(self, location: Location) -> Pipeline:
        """The pipeline at a location.

        Raises ``CodeMoved``, ``CodeUnavailable`` and what the user's code raises.
        """
        found = getattr(self._module(location), location.attribute, None)
        if not isinstance(found, Pipeline):
            where = location.file or location.module
            raise CodeMoved(f"{where} no longer has a pipeline {location.attribute!r}: apply it again")
        return found

    def script(self, location: Location, script: str) -> str:
        """The path of a script, or of a file of it, in the unpacked archive; unchanged if outside the archived directory.

        Raises ``CodeUnavailable``, or ``CodeMoved`` if it is inside that directory but not in the
        archive.
        """
        inside = None if location.sha256 is None else self._inside(location, script)
        if inside is None:
            return script
        if not inside.is_file():
            # A file at the original path was not shipped, so anyone may have put it there.
            raise CodeMoved(f"{script} is not in the archive of the pipeline's code: apply it again")
        return str(inside)

    def _inside(self, location: Location, file: str) -> Path | None:
        """The file in the unpacked archive; ``None`` if it is outside the archived directory."""
        assert location.sha256 is not None and location.root is not None
        if not is_inside(file, location.root):
            return None
        return self._unpacked(location.sha256) / Path(file).relative_to(location.root)

    def _module(self, location: Location) -> ModuleType:
        if location.sha256 != self._sha256 or any(_digest(path) != digest for path, digest in self._files.values()):
            self._forget()
        place = location.file or location.module or ""
        if place not in self._modules:
            self._modules[place] = self._import(location)
        return self._modules[place]

    def _import(self, location: Location) -> ModuleType:
        path = list(sys.path)
        before = set(sys.modules)
        file: Path | None = None if location.file is None else Path(location.file)
        folder: str | None = None
        try:
            if location.sha256 is not None:
                folder = str(self._unpacked(location.sha256))
                self._sha256 = location.sha256
                if folder not in sys.path:
                    sys.path.insert(0, folder)
                file = None if file is None else self._inside(location, str(file))
            return _import(location, file, folder)
        except PipelineFileError as e:
            # The run reports the original error with its traceback.
            raise e.__cause__ or e from None
        finally:
            self._folders |= set(sys.path) - set(path)
            if self._late not in sys.meta_path:
                sys.meta_path.insert(0, self._late)
            # Also after a failure: some modules may have been imported.
            self._files.update(_files((set(sys.modules) - before) | {"" if file is None else file.stem}))
            _ship(self._files)

    def _forget(self) -> None:
        for name, module in list(sys.modules.items()):
            if name in self._files or (name not in self._before and self._is_imported_code(name, module)):
                sys.modules.pop(name, None)
        sys.path[:] = [folder for folder in sys.path if folder not in self._folders]
        self._folders.clear()
        self._files, self._modules, self._sha256 = {}, {}, None

    def _is_imported_code(self, name: str, module: ModuleType) -> bool:
        """Whether it is a user module that a task imported while it ran."""
        tops = {known.partition(".")[0] for known in self._files}
        file = getattr(module, "__file__", None)
        # A namespace package has no file, only paths.
        places = [file] if file else [str(place) for place in getattr(module, "__path__", None) or ()]
        return any(
            is_users(place) and ((file and name.partition(".")[0] in tops) or self._is_in_folders(place))
            for place in places
        )

    def _is_in_folders(self, place: str) -> bool:
        return _is_below(place, self._folders)


class _LateImports(MetaPathFinder):
    """Imports of a task while it runs, from the user's ``folders``: their functions travel by value too."""

    def __init__(self, folders: set[str]) -> None:
        self._folders = folders

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader or spec.origin is None:
            return None
        if not (is_users(spec.origin) and _is_below(spec.origin, self._folders)):
            return None
        loader = _ByValue(fullname, spec.origin)
        return spec_from_file_location(
            fullname, spec.origin, loader=loader, submodule_search_locations=spec.submodule_search_locations
        )


class _ByValue(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        from pyspark import cloudpickle

        # A task may load one without that, and then nobody can refer to it by its name.
        if sys.modules.get(module.__name__) is module:
            cloudpickle.register_pickle_by_value(module)
        super().exec_module(module)


def _is_below(place: str, folders: set[str]) -> bool:
    return any(place.startswith(f"{folder}/") for folder in folders)


def _import(location: Location, file: Path | None, folder: str | None) -> ModuleType:
    """Import the module, from ``folder`` if its code is an archive."""
    importlib.invalidate_caches()
    if file is not None:
        return import_file(file)
    if location.module is None:
        raise CodeMoved(f"{location.file} is not in {location.root}: apply it again")
    if location.sha256 is None and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    module = importlib.import_module(location.module)
    places = [module.__file__] if module.__file__ else [str(place) for place in module.__path__]
    if folder is not None and not any(place.startswith(f"{folder}/") for place in places):
        raise CodeMoved(f"the driver already has a module {location.module}, in {places[0]}: rename the pipeline's")
    return module


def _files(names: set[str]) -> Files:
    """The user's files among these modules."""
    found = {}
    for name in names & set(sys.modules):
        path = getattr(sys.modules[name], "__file__", None)
        if path and is_users(path) and (digest := _digest(path)):
            found[name] = (path, digest)
    return found


def _digest(path: str) -> str | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def _ship(files: Files) -> None:
    """Pickle functions of user modules by value, because Spark workers do not have the modules."""
    from pyspark import cloudpickle

    for name in files.keys() & sys.modules.keys():
        cloudpickle.register_pickle_by_value(sys.modules[name])
