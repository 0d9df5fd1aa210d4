"""Imports the user code of an attempt, whose process has no other.

Code from the code store is imported from the directory it was unpacked into.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Callable, Protocol, Sequence

from retrofill.pipeline import Pipeline
from retrofill.sdk.texts import is_inside
from retrofill.user_code.pipeline_files import PipelineFileError, import_file, is_users

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
    """The user modules of this process."""

    def __init__(self, unpacked: Unpacked) -> None:
        self._unpacked = unpacked
        self._modules: dict[str, ModuleType] = {}
        # What was added to the path for them.
        self._folders: set[str] = set()
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
        """The path of a script, or of what it needs, in the unpacked archive; unchanged if outside the archived directory.

        Raises ``CodeUnavailable``, or ``CodeMoved`` if it is inside that directory but not in the
        archive.
        """
        inside = None if location.sha256 is None else self._inside(location, script)
        if inside is None:
            return script
        if not inside.exists():
            # A file at the original path was not shipped, so anyone may have put it there.
            raise CodeMoved(f"{script} is not in the archive of the pipeline's code: apply it again")
        return str(inside)

    def _inside(self, location: Location, file: str) -> Path | None:
        """The file in the unpacked archive; ``None`` if it is outside the archived directory."""
        assert location.sha256 is not None and location.root is not None
        if file != location.root and not is_inside(file, location.root):
            return None
        return self._unpacked(location.sha256) / Path(file).relative_to(location.root)

    def _module(self, location: Location) -> ModuleType:
        place = location.file or location.module or ""
        if place not in self._modules:
            self._modules[place] = self._import(location)
        return self._modules[place]

    def _import(self, location: Location) -> ModuleType:
        path, before = list(sys.path), set(sys.modules)
        file: Path | None = None if location.file is None else Path(location.file)
        folder: str | None = None
        try:
            if location.sha256 is not None:
                folder = str(self._unpacked(location.sha256))
                if folder not in sys.path:
                    sys.path.insert(0, folder)
                file = None if file is None else self._inside(location, str(file))
            return _import(location, file, folder)
        except PipelineFileError as e:
            # The run reports the original error with its traceback.
            raise e.__cause__ or e from None
        finally:
            self._folders |= set(sys.path) - set(path)
            sys.meta_path.insert(0, _LateImports(self._folders))
            _ship((set(sys.modules) - before) | {"" if file is None else file.stem})


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


def _ship(names: set[str]) -> None:
    """Pickle functions of the user's modules among these by value, because Spark workers do not have them."""
    from pyspark import cloudpickle

    for name in names & set(sys.modules):
        path = getattr(sys.modules[name], "__file__", None)
        if path and is_users(path):
            cloudpickle.register_pickle_by_value(sys.modules[name])
