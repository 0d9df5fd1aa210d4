"""The directories that absolute paths and ``file:`` URIs name."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from retrofill.outputs.cannot_stage import CannotStage
from retrofill.protocol.local_paths import path_in, why_not_local


def local_path(path: str) -> Path:
    """The directory of an absolute path or ``file:`` URI. Raises ``CannotStage`` for anything else."""
    path = str(path)
    if (why := why_not_local(path)) is not None:
        raise CannotStage(why)
    local = path_in(path)
    if local is not None:
        path = unquote(local)
    try:
        path.encode()
    except UnicodeEncodeError:
        raise CannotStage(f"{path!r} cannot be staged: its name is not UTF-8") from None
    target = Path(path)
    if target == Path(target.anchor):
        raise CannotStage(f"{path!r} cannot be staged: give the absolute path of a directory")
    if ".." in target.parts:
        raise CannotStage(f"{path!r} cannot be staged: write it without '..'")
    return target
