"""Loads pipelines from a Python file or module. Errors are one line with the position."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

from retrofill.pipeline import Pipeline
from retrofill.sdk.checking import text_of

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
