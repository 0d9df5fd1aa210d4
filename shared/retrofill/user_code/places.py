"""Which files are the user's own: those of installed packages are part of the environment, and are not shipped."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from retrofill.domain.pipeline import CodeLocation

# Installed packages do not change under a process; a new environment is a new process.
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OURS = str(Path(__file__).parents[1])


def is_users(path: str) -> bool:
    """Whether a module's file is neither Python's, nor an installed package's, nor ours."""
    return not path.startswith((*_INSTALLED, _OURS))


def root_of(location: CodeLocation) -> Path | None:
    """The folder from which the code is imported; ``None`` for a module of an installed package. It is imported already."""
    if location.file is not None:
        return Path(location.file).parent
    assert location.module is not None
    file = getattr(sys.modules[location.module], "__file__", None)
    if file is None or not is_users(file):
        return None
    path = Path(file).absolute()
    inside = len(location.module.split(".")) - (path.name != "__init__.py")
    return path.parents[inside]
