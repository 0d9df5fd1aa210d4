"""Loads user code: pipelines from a Python file or module, with errors of one line that names the position, and the code of an
attempt, whose process has no other.

Code from the code store is imported from the directory it was unpacked into.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import traceback
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Callable, Protocol, Sequence

from retrofill.pipeline import Pipeline
from retrofill.sdk.checking import text_of
from retrofill.sdk.texts import is_inside

_PACKAGES = ("site-packages", "dist-packages")
# An environment also has the packages of another Python on its path.
_INSTALLED = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {entry for entry in sys.path if entry.endswith(_PACKAGES)}
)
# Where all of Retrofill is installed beside each other, the beginning of its other packages' folders, too.
_OURS = str(Path(__file__).parents[1])


def is_users(path: str) -> bool:
    """Whether a module's file belongs to neither Python, an installed package nor Retrofill."""
    return not path.startswith((*_INSTALLED, _OURS))


def root_of(file: str | None = None, module: str | None = None) -> Path | None:
    """The directory that a file or module is imported from;

    ``None`` for an installed package. A module must be imported.
    """
    if file is not None:
        return Path(file).parent
    assert module is not None
    found = getattr(sys.modules[module], "__file__", None)
    if found is None or not is_users(found):
        return None
    path = Path(found).absolute()
    inside = len(module.split(".")) - (path.name != "__init__.py")
    return path.parents[inside]


class PipelineFileError(Exception):
    """No pipelines can be loaded. The message is one line: position, type of error, reason."""


def pipelines_in(source: str | Path) -> tuple[dict[str, str], dict[str, Pipeline]]:
    """Import a file or module. Returns its place, and its pipelines by attribute, in order.

    Raises ``PipelineFileError``.
    """
    if is_path(source):
        path = absolute(Path(source))
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise PipelineFileError(f"{str(path)!a}: its name is not UTF-8: rename it") from None
        return {"file": str(path)}, _found(import_file(path), str(path))
    return {"module": str(source)}, _found(_import_named(str(source)), str(source))


def absolute(path: Path) -> Path:
    """The path from the root, without ``..``, so that its text tells in which directories it is.

    Links are kept, as of a deployment that is exchanged, but those before a ``..`` lead elsewhere.
    """
    path = path.absolute()
    up = max((n for n, part in enumerate(path.parts, start=1) if part == ".."), default=0)
    return Path(*path.parts[:up]).resolve().joinpath(*path.parts[up:]) if up else path


def is_path(source: str | Path) -> bool:
    """Whether the source is a file rather than a module."""
    return isinstance(source, Path) or source.endswith(".py") or "/" in source or Path(source).is_file()


def import_file(path: Path) -> ModuleType:
    """Import a file anew as a module with its name. Raises ``PipelineFileError``.

    As for a script, its directory is added to the path.
    """
    if not path.is_file():
        raise PipelineFileError(f"{path}: no such file")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise PipelineFileError(f"{path}: not a Python file (*.py)")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, like every import: dataclasses and pickle look up their module.
    sys.modules[name] = module
    try:
        # Compiled from source: cached bytecode is only validated by size and time in seconds.
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except (Exception, SystemExit) as e:
        sys.modules.pop(name, None)
        raise PipelineFileError(one_line(e, path)) from e
    return module


def module_name(path: Path) -> str:
    """The file's name, unless it would hide another imported module."""
    known = sys.modules.get(path.stem)
    if known is None or getattr(known, "__file__", None) == str(path):
        return path.stem
    return f"retrofill_user_{path.stem}"


def one_line(error: BaseException, path: Path | None = None) -> str:
    """An error as one line: position (the innermost line in the user's file), type and reason."""
    first = (text_of(error).strip() or "no message").splitlines()[0]
    what = f"{type(error).__name__}: {first}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _users(frame.filename, path)]
    if frames:
        return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: {what}"
    return f"{path.name}: {what}" if path else what


def _users(filename: str, path: Path | None) -> bool:
    if path is not None:
        return filename == str(path)
    return not filename.startswith("<") and "importlib" not in filename and filename != __file__


def _import_named(name: str) -> ModuleType:
    # As with `python -m`, modules in the working directory can be imported.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as e:
        found = one_line(e)
        raise PipelineFileError(found if ".py:" in found else f"{name}: {found}") from e


def _found(module: ModuleType, source: str) -> dict[str, Pipeline]:
    found: dict[int, tuple[str, Pipeline]] = {}
    for attribute, value in vars(module).items():
        if isinstance(value, Pipeline):
            # A pipeline with two names counts once, under the first.
            found.setdefault(id(value), (attribute, value))
    if not found:
        raise PipelineFileError(f"{source}: no Pipeline at the top level")
    return dict(found.values())


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
