"""Publishes staged output: replaces the output directory as a whole, exactly once.

Next to an output ``PARENT/NAME``, for run 7 of an installation in the attempt with the id 25 (``…`` is ``-3f2a9c01``)::

    PARENT/_retrofill/NAME@7…/25.writing-1/new     where a task writes: one path per call of stage()
    PARENT/_retrofill/NAME@7…/25.claimed/new       complete and no longer written to; others see that it is to be published
    PARENT/_retrofill/NAME@7…/25.publish-0/new     sealed: the place is its own (``retrofill.outputs.places``)
    PARENT/_retrofill/NAME@7…/25.publish-1/new     taken over by publication 1, because publication 0 was lost
    PARENT/_retrofill/NAME@7…/25.publish-1/new     after the exchange: what was published before
    PARENT/_retrofill/NAME@7…/25.publish-1/old-1   the same, where directories cannot be exchanged
    PARENT/_retrofill/NAME@7…/25.…/_retrofill.json   of which pipeline and interval it is
    PARENT/_retrofill/kept/…                      in the end: what was replaced (``retrofill.outputs.kept``)
    PARENT/NAME                                   published; _retrofill.json names the run

A publisher changes the file system only by renames into or out of a directory that carries its own
number, so that name is a fence. A later publication of the run renames the directory to its own
number, and a publication of a later run first moves away the directories of all earlier ones. From
then on, every rename of a former publisher fails because its path does not exist, wherever it was
stopped and whenever it resumes. ``docs/decisions/staged-output.md`` lists the interleavings that
determine the order of the steps.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generator, Iterable, Iterator, Mapping, Sequence

from retrofill.log import get_log
from retrofill.outputs.base import Base, BaseChanged, base_of_folder
from retrofill.outputs.kept import (
    AREA,
    displaced,
    forget_old,
    has_displaced,
    is_of,
    keep,
    marker_in,
    number_of,
    output_of,
    put_marker,
    sweep,
    throw_away,
)
from retrofill.outputs.places import CLAIMED, Claim, Owner, PlaceTaken, is_of_another, refuse_taken, settle
from retrofill.system.crash import crash_point
from retrofill.system.files import exchange, sync, sync_all, sync_trees

log = get_log(__name__)
# Errors of rename if the target is a non-empty directory or a file.
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)


class StagedOutputGone(Exception):
    """The staged output was deleted before publication, or this publisher is fenced."""


class PublishedAgain(Exception):
    """An undo would replace what was published after the output that it undoes."""


@dataclass(frozen=True)
class Publication:
    """One output of a ``run`` (its key), staged by the ``attempt`` (id) that was accepted.

    ``number`` counts the publishers, from 0. ``keep_days``: how long what is replaced is kept. ``base``: the state of
    the target that a review has approved; ``over_changes``: it has approved what others have changed.
    """

    target: Path
    run: str
    attempt: int
    number: int
    keep_days: int = 0
    base: Base | None = None
    over_changes: bool = False


def own_folder(target: Path, run: str) -> Path:
    """The directory for all files of a run (by its key) next to an output."""
    return target.parent / AREA / f"{target.name}@{run}"


def sealed_folder(target: Path, run: str, attempt: int, number: int = 0) -> Path:
    """The directory that belongs to one publisher."""
    return own_folder(target, run) / f"{attempt}.publish-{number}"


@dataclass(frozen=True)
class Written:
    """An output that a task has written to ``folder/new``; ``about``: what its marker says."""

    folder: Path
    target: Path
    run: str
    about: Mapping[str, Any]

    @property
    def own(self) -> Path:
        return own_folder(self.target, self.run)

    def claim(self, attempt: int) -> Claim | None:
        """The output as others see it."""
        return claim_of(self.target, self.run, attempt, self.about)


def seal(outputs: Sequence[Written], attempt: int) -> None:
    """Sync outputs to disk and rename each to the name that publishers expect, unless its place is taken.

    All at once, as each sync by itself waits for the disk. Raises ``PlaceTaken`` or ``OSError``.
    """
    for step in sealing(outputs, attempt):
        crash_point(step)


def sealing(outputs: Sequence[Written], attempt: int) -> Iterator[str]:
    """Seal step by step. Like ``steps``, it yields a step's name before each change that others see.

    Whoever claims a place becomes visible, looks at who else does, and only then gets it: of two at once, one at least
    sees the other.
    """
    claims = [claim for claim in (each.claim(attempt) for each in outputs) if claim is not None]
    claimed = [each.own / f"{attempt}.{CLAIMED}" for each in outputs]
    sealed = [sealed_folder(each.target, each.run, attempt) for each in outputs]
    try:
        try:
            for each in outputs:
                put_marker(each.folder / "new", each.about)
            sync_trees(each.folder / "new" for each in outputs)
            yield "seal:claim"
            for each, folder in zip(outputs, claimed):
                each.folder.rename(folder)
            yield "seal:look"
            settle(claims)
            for each, former, folder in zip(outputs, claimed, sealed):
                yield "seal:take"
                if not _moved(former, folder):
                    raise PlaceTaken(
                        f"{each.target} is staged for another interval at the same time: put the interval into the path"
                    )
        except (FileNotFoundError, PlaceTaken):
            # Another attempt has taken the claim away, or replaced a directory above with all that was in it. By now its
            # place may be its own.
            refuse_taken(claims)
            raise
    except PlaceTaken:
        for each, *folders in zip(outputs, claimed, sealed):
            for folder in folders:
                throw_away(folder, each.target.parent / AREA)
        raise
    sync_all(each.own for each in outputs)


def claim_of(target: Path, run: str, attempt: int, marker: Mapping[str, Any]) -> Claim | None:
    """The claim of an output whose marker is this; ``None`` if it names no interval."""
    owner = Owner.of_run(marker)
    return None if owner is None else Claim(target, run, attempt, owner, undoes="undoes" in marker)


def publish(publication: Publication) -> bool:
    """Replace the output. Idempotent. Returns whether it replaced another state than the approved one.

    Raises ``StagedOutputGone``, ``BaseChanged``, ``PublishedAgain``, ``PlaceTaken`` or ``OSError``.
    """
    refuse_changed_base(publication)
    replaced_change = _walk(steps(publication))
    area = publication.target.parent / AREA
    try:
        forget_old(area)
        sweep(area)
    except OSError as e:
        # It is published. The next publication here tries again.
        log.warning("replaced_output_not_deleted", area=str(area), error=str(e))
    return replaced_change


Steps = Generator[str, None, bool]


def _walk(steps: Steps) -> bool:
    while True:
        try:
            crash_point(next(steps))
        except StopIteration as end:
            return bool(end.value)


def steps(publication: Publication) -> Steps:
    """Publish step by step: yields a step's name before each change of the file system.

    Returns whether it replaced another state than the approved one.
    """
    target, run = publication.target, publication.run
    replaced_change = False
    folder = yield from _take(publication)
    if folder is not None:
        yield from _retire_earlier_runs(publication, Owner.of_run(marker_in(folder)))
        try:
            done = yield from _replace(folder, publication)
        except PlaceTaken:
            # It is never published, so it must hold no place.
            throw_away(own_folder(target, run), target.parent / AREA)
            raise
    if folder is None or not done:
        yield "publish:verify"
        if published_by(target) != run:
            raise StagedOutputGone(
                f"the output that run {number_of(run)} staged for {target} is no longer in {own_folder(target, run)}, "
                "nor is it published"
            )
    elif publication.base is not None:
        replaced_change = _has_replaced_change(folder, publication.base, publication)
    yield "publish:clean"
    try:
        _put_away(own_folder(target, run), publication)
    except OSError as e:
        # It is published. The next publication of the interval deletes the directory.
        log.warning("replaced_output_not_kept", output=str(target), error=str(e))
    return replaced_change


def refuse_changed_base(publication: Publication) -> None:
    """Raise ``BaseChanged`` unless the target is as it was approved, or the run is published there already."""
    base, target, run = publication.base, publication.target, publication.run
    if base is None or base_of_folder(target) == base or published_by(target) == run:
        return
    sealed = own_folder(target, run).glob(f"{publication.attempt}.publish-*")
    if all(is_of(folder / "new", run) for folder in sealed):
        raise BaseChanged(str(target), str(target))


def _has_replaced_change(folder: Path, base: Base, publication: Publication) -> bool:
    """Whether what the run replaced is not what was approved."""
    try:
        before = next(iter(displaced(folder, publication.run)), folder / "nothing")
        changed = base_of_folder(before) != base
    except OSError as e:
        log.warning("replaced_output_not_compared", output=str(publication.target), error=str(e))
        return False
    if changed:
        log.warning("replaced_change", output=str(publication.target), run=publication.run, restored_by="undo")
    return changed


def _put_away(own: Path, publication: Publication) -> None:
    if publication.keep_days:
        keep(own, publication.target.parent / AREA, publication.keep_days)
    else:
        throw_away(own, publication.target.parent / AREA)


def published_by(target: Path) -> str | None:
    """The key of the run that published ``target``; ``None`` if unknown."""
    try:
        run = marker_in(target).get("run")
    except OSError:
        return None
    return run if isinstance(run, str) else None


def _take(publication: Publication) -> Generator[str, None, Path | None]:
    """Rename the sealed directory to our number, which fences all former publishers of the run.

    ``None`` if not found.
    """
    of = [
        sealed_folder(publication.target, publication.run, publication.attempt, number)
        for number in range(publication.number + 1)
    ]
    own = of[-1]
    yield "publish:look"
    if own.exists():
        return own
    # Each former publisher that still runs may rename it once meanwhile.
    for _ in of:
        for former in reversed(of[:-1]):
            yield "publish:take"
            if _moved(former, own):
                return own
    return None


def _retire_earlier_runs(publication: Publication, owner: Owner | None) -> Iterator[str]:
    """Fence the publishers of all earlier runs of the interval. Must precede the replacement.

    A run of another interval is not in the way: it is refused when it seals its output.
    """
    target = publication.target
    while True:
        yield "publish:list"
        found = sorted(_earlier_runs(target, publication.run))
        earlier = [folder for folder in found if not is_of_another(folder, owner)]
        if not earlier:
            return
        for folder in earlier:
            yield "publish:retire"
            # One may have published, and failed before it put away what it replaced.
            if has_displaced(folder, folder.name.rpartition("@")[2]):
                _put_away(folder, publication)
            else:
                throw_away(folder, target.parent / AREA)


def _earlier_runs(target: Path, run: str) -> Iterator[Path]:
    area = target.parent / AREA
    own, _, installation = run.partition("-")
    # Names only: the directory has one for each run of a range.
    for name in os.listdir(area):  # noqa: PTH208 - a Path for each would take longer than all else here
        output, _, key = name.rpartition("@")
        number, _, other = key.partition("-")
        if output == target.name and number.isdecimal() and other == installation and int(number) < int(own):
            yield area / name


def _replace(folder: Path, publication: Publication) -> Generator[str, None, bool]:
    """Exchange the published directory and the new one, or move one away and the other into place.

    Returns whether the new one is in place.
    """
    target, new = publication.target, folder / "new"
    while True:
        yield "publish:look"
        if not is_of(new, publication.run):
            # A former publisher got this far, so that it is gone or is what was published before; or its marker cannot be
            # read, or we are fenced, which the caller checks.
            return folder.exists() and published_by(target) == publication.run
        _refuse_newer(folder, publication)
        claim = claim_of(target, publication.run, publication.attempt, marker_in(new))
        refuse_taken(filter(None, [claim]), unpublished=False)
        yield "publish:exchange"
        exchanged = exchange(new, target)
        if exchanged:
            sync(target.parent)
            return True
        if exchanged is None:
            yield "publish:displace"
            _moved(target, folder / f"old-{len(list(folder.glob('old-*'))) + 1}")
        yield "publish:rename"
        try:
            new.rename(target)
        except FileNotFoundError:
            return False
        except OSError as e:
            if e.errno not in _OCCUPIED:
                raise
            continue  # something that does not use staging wrote there in between
        sync(target.parent)
        return True


def _refuse_newer(folder: Path, publication: Publication) -> None:
    """Raise ``PublishedAgain`` if the output is an undo's, and what it undoes is not what is published."""
    undoes = marker_in(folder / "new").get("undoes")
    if undoes is not None and not publication.over_changes:
        # It may have been displaced already, by this publisher or by a former one.
        refuse_changed(publication.target, undoes, displaced(folder, publication.run))


def refuse_changed(target: Path, undoes: str, before: Iterable[Path] = ()) -> None:
    """Raise ``PublishedAgain`` unless a run's output is what is published, or was in the last of ``before``.

    What another undo of that run has restored may be restored again: it may have failed after that.
    """
    present = marker_in(target) if target.exists() else next(filter(None, map(marker_in, before)), {})
    if output_of(present) != undoes and present.get("undoes") != undoes:
        raise PublishedAgain(
            f"{target} was changed after run {number_of(undoes)} had published it, so its undo leaves it alone"
        )


def _moved(source: Path, to: Path) -> bool:
    """Rename. Returns False if the source or the target's directory does not exist."""
    try:
        source.rename(to)
    except FileNotFoundError:
        return False
    return True
