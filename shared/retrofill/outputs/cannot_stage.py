"""Refusals of output that cannot be staged, and the directories that can be. Each message is one line that says what to do."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from retrofill.sdk.texts import path_in, why_not_local


class CannotStage(ValueError):
    """The path or table cannot be staged."""


class NoSuchTable(CannotStage):
    """The table does not exist."""


class NoSuchColumn(CannotStage):
    """The table has no column of that name, or none that distinguishes intervals."""


class DoesNotFit(CannotStage):
    """The rows do not have the table's columns, types or required values."""


class OtherInterval(CannotStage):
    """A row belongs to another interval."""


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
