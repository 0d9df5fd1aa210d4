"""Publishing what an attempt staged: the output's folder is replaced as a whole, once, by whoever is told to.

Beside an output ``PARENT/NAME``, for attempt 2 of run 7::

    PARENT/_retrofill/NAME@7/2.writing-1/new     where a task writes: a path for each call of stage()
    PARENT/_retrofill/NAME@7/2.publish-0/new     sealed: whole, and nobody writes there any more
    PARENT/_retrofill/NAME@7/2.publish-1/new     taken by publication 1, because publication 0 was lost
    PARENT/_retrofill/NAME@7/2.publish-1/old-…   what was published before
    PARENT/NAME                                  published, with _retrofill.json, which says by which run

Everything that a publisher changes is a rename out of, or into, a folder that carries its own number, and a folder's name is a
fence: a later publication of the run renames that folder to its own number, and a publication of a later run first moves
away the folders of all earlier ones. From then on every rename of a former publisher finds no such path, wherever it was stopped
and whenever it is woken. ``docs/decisions/staged-output.md`` has the interleavings that the order of the steps is there for.
"""

from __future__ import annotations

import errno
import json
import shutil
import uuid
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrofill.bus.crash import crash_point
from retrofill.durable import sync, sync_tree

AREA = "_retrofill"
MARKER = "_retrofill.json"
_TRASH = ".trash-"
# What rename says where the target is a folder with something in it, or a file.
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)


class StagedOutputGone(Exception):
    """The staged output is neither there nor published: it was deleted, or this publisher is not the one any more."""


@dataclass(frozen=True)
class Publication:
    """One output of one accepted attempt, to be published for the ``number``-th time that somebody was told to, from 0."""

    target: Path
    run_id: int
    attempt: int
    number: int


def own_folder(target: Path, run_id: int) -> Path:
    """All that a run has beside an output."""
    return target.parent / AREA / f"{target.name}@{run_id}"


def sealed_folder(target: Path, run_id: int, attempt: int, number: int = 0) -> Path:
    """What a publisher has to itself."""
    return own_folder(target, run_id) / f"{attempt}.publish-{number}"


def seal(written: Path, target: Path, run_id: int, attempt: int, about: dict[str, Any]) -> None:
    """Make ``written/new`` durable and whole under the name that publishers look for. Raises ``OSError``."""
    new = written / "new"
    (new / MARKER).write_text(json.dumps(about), encoding="utf-8")
    sync_tree(new)
    written.rename(sealed_folder(target, run_id, attempt))
    sync(own_folder(target, run_id))


def publish(publication: Publication) -> None:
    """Replace the output; once it is, again changes nothing. Raises ``StagedOutputGone`` or ``OSError``."""
    for step in steps(publication):
        crash_point(step)
    sweep(publication.target.parent / AREA)


def steps(publication: Publication) -> Iterator[str]:
    """Publish, with a pause before each change of the file system that names what comes next."""
    target, run_id = publication.target, publication.run_id
    folder = yield from _take(publication)
    if folder is not None:
        yield from _retire_earlier_runs(target, run_id)
        done = yield from _replace(folder, target)
    if folder is None or not done:
        yield "publish:verify"
        if published_by(target) != run_id:
            raise StagedOutputGone(
                f"what run {run_id} staged for {target} is not in {own_folder(target, run_id)} any more, nor is it published"
            )
    yield "publish:clean"
    _throw_away(own_folder(target, run_id))


def published_by(target: Path) -> int | None:
    """The run that published what is at ``target``; ``None`` where that cannot be told."""
    try:
        fields = json.loads((target / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    run_id = fields.get("run_id") if isinstance(fields, dict) else None
    return run_id if isinstance(run_id, int) else None


def _take(publication: Publication) -> Generator[str, None, Path | None]:
    """Make the sealed folder our own; from here on no former publisher of the run finds it. Returns it, or ``None``."""
    of = [
        sealed_folder(publication.target, publication.run_id, publication.attempt, number)
        for number in range(publication.number + 1)
    ]
    own = of[-1]
    yield "publish:look"
    if own.exists():
        return own
    # Each former publisher that is not stopped may move it under our hands, once.
    for _ in of:
        for former in reversed(of[:-1]):
            yield "publish:take"
            if _moved(former, own):
                return own
    return None


def _retire_earlier_runs(target: Path, run_id: int) -> Iterator[str]:
    """Fence the publishers of all earlier runs; before anything is replaced, or they would replace it back."""
    while True:
        yield "publish:list"
        earlier = sorted(_earlier_runs(target, run_id))
        if not earlier:
            return
        for folder in earlier:
            yield "publish:retire"
            _throw_away(folder)


def _earlier_runs(target: Path, run_id: int) -> Iterator[Path]:
    area = target.parent / AREA
    for folder in area.iterdir():
        output, _, number = folder.name.rpartition("@")
        if output == target.name and number.isdecimal() and int(number) < run_id:
            yield folder


def _replace(folder: Path, target: Path) -> Generator[str, None, bool]:
    """Move the published folder out of the way and the new one to its place; whether it is there now."""
    while True:
        yield "publish:look"
        if not (folder / "new").exists():
            # A former publisher had come so far; or the folder is not ours any more, which the caller finds out.
            return folder.exists()
        yield "publish:displace"
        _moved(target, folder / f"old-{uuid.uuid4().hex[:8]}")
        yield "publish:rename"
        try:
            (folder / "new").rename(target)
        except FileNotFoundError:
            return False
        except OSError as e:
            if e.errno not in _OCCUPIED:
                raise
            # Somebody who does not stage wrote there in between.
            continue
        sync(target.parent)
        return True


def _moved(source: Path, to: Path) -> bool:
    """Rename; False where the source, or the folder that it was to go into, is not there."""
    try:
        source.rename(to)
    except FileNotFoundError:
        return False
    return True


def _throw_away(folder: Path) -> None:
    """Take the folder from whoever has it, in one step; ``sweep`` deletes what is in it."""
    _moved(folder, folder.parent / f"{_TRASH}{uuid.uuid4().hex}")


def sweep(area: Path) -> None:
    """Delete what was thrown away. What somebody else is deleting, or is still writing to, is left to the next one."""
    for thrown_away in area.glob(f"{_TRASH}*"):
        shutil.rmtree(thrown_away, ignore_errors=True)
