"""Directories that publications have replaced, kept so that an undo can restore them.

What run 7 replaced when it published what its attempt 25 had staged::

    PARENT/_retrofill/kept/2026-01-31/NAME@7.25/25.publish-1/new     the day is that of the publication, in UTC

Without such a ``new`` (or ``old-1``), there was nothing before.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import uuid
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Iterator, Mapping

AREA = "_retrofill"
MARKER = "_retrofill.json"
KEPT = "kept"
_TRASH = ".trash-"


class NotKept(Exception):
    """What a run has replaced is not there to be restored. The message is one line."""


@dataclass(frozen=True)
class Kept:
    """What a run replaced. ``folder``: ``None`` if nothing was there before."""

    folder: Path | None

    @property
    def run_id(self) -> int | None:
        """The run that had written it, if one had."""
        return None if self.folder is None else output_of(marker_of(self.folder) or {})


def keep(own: Path, area: Path, attempt: int) -> None:
    """Move the directory ``own`` of a run, in which the replaced output is, to those kept since today.

    Like any publisher's change, one rename: it fails for all but the first.
    """
    day = area / KEPT / _today().isoformat()
    day.mkdir(parents=True, exist_ok=True)
    try:
        own.rename(day / f"{own.name}.{attempt}")
    except FileNotFoundError:
        return  # by another publisher


def find(target: Path, run_id: int) -> Kept:
    """What a run replaced at ``target``. Raises ``NotKept``."""
    name = glob.escape(f"{target.name}@{run_id}")
    found = list((target.parent / AREA / KEPT).glob(f"*/{name}.*"))
    if not found:
        raise NotKept(f"what run {run_id} replaced at {target} is no longer kept (RETROFILL_KEEP_REPLACED_DAYS)")
    attempt = found[0].name.rpartition(".")[2]
    return Kept(next(displaced(found[0], attempt, run_id), None))


def displaced(own: Path, attempt: str | int, run_id: int) -> Iterator[Path]:
    """Directories that were published before those of a run, the last one first."""
    for folder in own.glob(f"{attempt}.publish-*"):
        new = folder / "new"
        if new.is_dir() and (marker_of(new) or {}).get("run_id") != run_id:
            yield new
        yield from sorted(folder.glob("old-*"), key=lambda each: int(each.name[4:]), reverse=True)


def copy(kept: Kept, to: Path) -> None:
    """Copy the files as links to the kept ones, which nobody changes. Raises ``OSError``."""
    if kept.folder is None:
        to.mkdir()
        return
    # What is published gets a marker of its own, as a link would change the kept one.
    ignored = shutil.ignore_patterns(MARKER)
    shutil.copytree(kept.folder, to, symlinks=True, ignore=ignored, copy_function=_link)


def forget_old(area: Path, days: int) -> None:
    """Throw away what was replaced more than ``days`` ago, for ``sweep`` to delete."""
    first = _today() - timedelta(days=days)
    for each in (area / KEPT).glob("????-??-??"):
        if each.name < first.isoformat():
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


def marker_of(folder: Path) -> Mapping[str, Any] | None:
    """What a directory's marker says; ``None`` if it says nothing. Raises ``OSError`` if it is missing."""
    try:
        fields = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None


def output_of(marker: Mapping[str, Any]) -> int | None:
    """The run whose output a directory has: the one that published it or, of an undo, the one before."""
    run_id = marker.get("output_of", marker.get("run_id"))
    return run_id if isinstance(run_id, int) else None


def _link(source: str, to: str) -> str:
    try:
        os.link(source, to)
    except OSError:
        # A file system without hard links, or too many of one file.
        shutil.copy2(source, to)
    return to


def _today() -> date:
    return datetime.now(timezone.utc).date()
