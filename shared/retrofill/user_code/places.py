"""Distinguishes user code, which is shipped, from installed packages."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from retrofill.domain.pipeline import CodeLocation

_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OURS = str(Path(__file__).parents[1])


def is_users(path: str) -> bool:
    """Whether a module's file belongs to neither Python, an installed package nor Retrofill."""
    return not path.startswith((*_INSTALLED, _OURS))


def root_of(location: CodeLocation) -> Path | None:
    """The directory that the code is imported from;

    ``None`` for an installed package. A module must be imported.
    """
    if location.file is not None:
        return Path(location.file).parent
    assert location.module is not None
    file = getattr(sys.modules[location.module], "__file__", None)
    if file is None or not is_users(file):
        return None
    path = Path(file).absolute()
    inside = len(location.module.split(".")) - (path.name != "__init__.py")
    return path.parents[inside]
