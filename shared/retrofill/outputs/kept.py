"""Directories that publications have replaced, kept so that an undo can restore them.

What run 7 of an installation replaced when it published what its attempt 25 had staged::

    PARENT/_retrofill/kept/2026-01-31/NAME@7-3f2a9c01/25.publish-1/new     the day is that of the publication, in UTC
    PARENT/_retrofill/kept/2026-01-31/.days-30                             keep it for so many days, or for more if
                                                                           another publisher left a larger number
Without such a ``new`` (or ``old-1``), there was nothing before.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from json import dumps, loads
from pathlib import Path
from typing import Any, Iterator, Mapping

AREA = "_retrofill"
MARKER = "_retrofill.json"
KEPT = "kept"
# In a marker: to whom the directory belongs, if that is not the run that published it.
PLACE = "place"
OWNER = ("pipeline", "interval_start", "interval_end")
_TRASH = ".trash-"
_DAYS = ".days-"


def key_of(installation: str, run_id: int) -> str:
    """The run as markers and directories name it. Each installation counts its runs from 1."""
    return f"{run_id}-{hashlib.sha256(installation.encode()).hexdigest()[:8]}"


def number_of(run: str) -> str:
    """The id of a run from its key, as people know it."""
    return run.partition("-")[0]


def _installation_of(run: str) -> str:
    return run.partition("-")[2]


class NotKept(Exception):
    """What a run has replaced is not there to be restored. The message is one line."""


@dataclass(frozen=True)
class Kept:
    """What a run replaced. ``folder``: ``None`` if nothing was there before."""

    folder: Path | None

    @property
    def run(self) -> str | None:
        """The key of the run that had written it, if one had."""
        return None if self.folder is None else output_of(marker_in(self.folder))

    @property
    def place(self) -> Mapping[str, Any] | None:
        """To which interval of which pipeline the directory belonged, as markers say it."""
        marker = {} if self.folder is None else marker_in(self.folder)
        if PLACE not in marker:
            return {name: marker[name] for name in OWNER if name in marker}
        return marker[PLACE] if isinstance(marker[PLACE], dict) else None


def keep(own: Path, area: Path, days: int) -> None:
    """Move the directory ``own`` of a run, in which the replaced output is, to those kept since today for ``days``.

    Like any publisher's change, one rename: it fails for all but the first.
    """
    day = area / KEPT / today().isoformat()
    day.mkdir(parents=True, exist_ok=True)
    (day / f"{_DAYS}{days}").touch()
    try:
        own.rename(day / own.name)
    except FileNotFoundError:
        return  # by another publisher
    except OSError as e:
        if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        # What a straggler wrote for the run after the first was moved.
        throw_away(own, area)


def find(target: Path, run: str) -> Kept:
    """What a run (by its key) replaced at ``target``. Raises ``NotKept`` or ``OSError``."""
    kept = target.parent / AREA / KEPT
    for day in sorted(kept.iterdir()) if kept.is_dir() else ():
        entry = day / f"{target.name}@{run}"
        for folder in _published(entry, run):
            before = displaced(folder, run)
            if not before and entry.exists():
                return Kept(None)
            if before and (before[0].is_symlink() or not before[0].is_dir()):
                raise NotKept(f"what run {number_of(run)} replaced at {target} was no directory: restore it by hand")
            if before:
                return Kept(before[0])
    raise NotKept(f"what run {number_of(run)} replaced at {target} is no longer kept (RETROFILL_KEEP_REPLACED_DAYS)")


def find_before(target: Path, run: str) -> Kept:
    """What was at ``target`` before a run's backfill: a run may have replaced a failed one of the same backfill.

    Raises ``NotKept`` or ``OSError``.
    """
    present = marker_in(target)
    kept = find(target, run)
    while kept.folder is not None:
        before = marker_in(kept.folder)
        earlier = str(before.get("run", ""))
        if (
            "undoes" in before
            or before.get("backfill_id") is None
            or before["backfill_id"] != present.get("backfill_id")
            or _installation_of(earlier) != _installation_of(run)
        ):
            break
        kept = find(target, earlier)
    return kept


def has_displaced(own: Path, run: str) -> bool:
    """Whether the directory of a run has what it replaced."""
    return any(displaced(folder, run) for folder in _published(own, run))


def displaced(folder: Path, run: str) -> list[Path]:
    """What a publisher's folder has of what was published before the run, the last one first."""
    names = [path.name for path in folder.iterdir()]
    old = sorted((name for name in names if name.startswith("old-")), key=_number, reverse=True)
    new = ["new"] if "new" in names and not is_of(folder / "new", run) else []
    return [folder / name for name in (*new, *old)]


def _published(own: Path, run: str) -> Iterator[Path]:
    """The folders of a run's publishers, without what another attempt sealed, which was not accepted."""
    try:
        folders = sorted(own.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for folder in folders:
        if ".publish-" in folder.name and not is_of(folder / "new", run):
            yield folder


def _number(name: str) -> int:
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def copy(kept: Kept, to: Path) -> None:
    """Copy the files as links to the kept ones, which nobody changes. Raises ``OSError``."""
    if kept.folder is None:
        to.mkdir()
        return
    top = str(kept.folder)

    # What is published gets a marker of its own, as a link would change the kept one.
    def ignored(folder: str, _: list[str]) -> list[str]:
        return [MARKER] if folder == top else []

    shutil.copytree(kept.folder, to, symlinks=True, ignore=ignored, copy_function=_link)


def forget_old(area: Path) -> None:
    """Throw away what was kept for as long as it was to be, for ``sweep`` to delete."""
    for each in (area / KEPT).glob("????-??-??"):
        of_day = max((_number(path.name) for path in each.glob(f"{_DAYS}*")), default=None)
        if of_day is not None and each.name < (today() - timedelta(days=of_day)).isoformat():
            throw_away(each, area)


def throw_away(folder: Path, area: Path) -> None:
    """Move the directory away atomically, if it exists; ``sweep`` deletes it."""
    try:
        folder.rename(area / f"{_TRASH}{uuid.uuid4().hex}")
    except FileNotFoundError:
        return


def sweep(area: Path) -> None:
    """Delete directories that were thrown away. Those still in use are left to the next call."""
    for name in os.listdir(area):  # noqa: PTH208 - a Path for each would take longer than all else here
        if name.startswith(_TRASH):
            shutil.rmtree(area / name, ignore_errors=True)


def marker_in(folder: Path) -> Mapping[str, Any]:
    """The content of a directory's marker, if it has one. Raises ``OSError`` if it cannot be read."""
    try:
        fields = loads((folder / MARKER).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def put_marker(folder: Path, about: Mapping[str, Any]) -> None:
    """Write a directory's marker in one step. A former one may be a link to another's, which stays as it is.

    Raises ``OSError``.
    """
    whole = folder / f".{MARKER}-{uuid.uuid4().hex}"
    whole.write_text(dumps(about), encoding="utf-8")
    whole.rename(folder / MARKER)


def is_of(folder: Path, run: str) -> bool:
    """Whether the run wrote the directory. Raises ``OSError`` if that cannot be found out."""
    return bool(marker_in(folder).get("run") == run)


def output_of(marker: Mapping[str, Any]) -> str | None:
    """The run whose output a directory has: the one that published it or, of an undo, the one before."""
    run = marker.get("output_of", marker.get("run"))
    return run if isinstance(run, str) else None


def _link(source: str, to: str) -> str:
    try:
        os.link(source, to)
    except OSError:
        # A file system without hard links, or too many of one file.
        shutil.copy2(source, to)
    return to


def today() -> date:
    """The date in UTC, by which replaced output is kept."""
    return datetime.now(timezone.utc).date()
