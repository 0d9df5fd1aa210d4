"""The user's code in a warm process: imported once, and again when it or what it imports beside it has changed."""

from __future__ import annotations

import hashlib
import importlib
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from retrofill.domain.pipeline import CodeLocation
from retrofill.loading import PipelineFileError, import_file
from retrofill.pipeline import Pipeline

# Installed packages do not change under a process; a new environment is a new process.
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OURS = str(Path(__file__).parents[1])
# Module name → its file and the digest of that.
Files = dict[str, tuple[str, str]]


class CodeMoved(Exception):
    """The pipeline is no longer where the applied definition says."""


class Code:
    """The user's modules of this process. A change in any of their files has all of them imported afresh."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}
        self._files: Files = {}
        # Bytecode is trusted by its second and size: an edit within a second would be missed.
        sys.dont_write_bytecode = True

    def pipeline(self, location: CodeLocation) -> Pipeline:
        """The pipeline at a place. Raises what the user's code raises, or ``CodeMoved``."""
        found = getattr(self._module(location), location.attribute, None)
        if not isinstance(found, Pipeline):
            where = location.file or location.module
            raise CodeMoved(f"{where} has no pipeline {location.attribute!r} any more: apply it again")
        return found

    def _module(self, location: CodeLocation) -> ModuleType:
        if any(_digest(path) != digest for path, digest in self._files.values()):
            self._forget()
        place = location.file or location.module or ""
        if place not in self._modules:
            self._modules[place] = self._import(location)
        return self._modules[place]

    def _import(self, location: CodeLocation) -> ModuleType:
        before = set(sys.modules)
        try:
            return _import(location)
        except PipelineFileError as e:
            # The run's report tells the error itself, with its traceback.
            raise e.__cause__ or e from None
        finally:
            # Also after a failure: half of it may be there, and is as changeable as the rest.
            self._files |= _files((set(sys.modules) - before) | {Path(location.file or "").stem})
            _ship(self._files)

    def _forget(self) -> None:
        for name in self._files:
            sys.modules.pop(name, None)
        self._files, self._modules = {}, {}


def _import(location: CodeLocation) -> ModuleType:
    importlib.invalidate_caches()
    if location.file is not None:
        return import_file(Path(location.file))
    assert location.module is not None
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(location.module)


def _files(names: set[str]) -> Files:
    """Those of the modules that are files of the user."""
    found = {}
    for name in names & set(sys.modules):
        path = getattr(sys.modules[name], "__file__", None)
        if path and not path.startswith((*_INSTALLED, _OURS)) and (digest := _digest(path)):
            found[name] = (path, digest)
    return found


def _digest(path: str) -> str | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def _ship(files: Files) -> None:
    """Have functions of the user's modules travel to Spark's workers by value: the modules are not there."""
    from pyspark import cloudpickle

    for name in files.keys() & sys.modules.keys():
        cloudpickle.register_pickle_by_value(sys.modules[name])
