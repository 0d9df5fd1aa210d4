"""A directory belongs to one interval of one pipeline, with all that is in it: nobody else's runs may publish there.

Who it belongs to is on the disk, beside the data, so that it holds for all hosts and installations that see it:

- of a published directory, its marker says so;
- of one that is still to be published, the marker of the folder in ``_retrofill`` where its run has it.

Two that are published at once see each other: each becomes visible first and looks then (``retrofill.outputs.publication``,
``sealing``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, Sequence

from retrofill.outputs.cannot_stage import CannotStage
from retrofill.outputs.kept import AREA, PLACE, is_of, marker_in, number_of, put_marker, throw_away
from retrofill.wording import span

# What the folder of an attempt is called: while a task writes, from when it claims its place, and from when it has it.
WRITING, CLAIMED, SEALED = "writing", "claimed", "publish"


class PlaceTaken(CannotStage):
    """The directory, or one above or below it, belongs to another interval or pipeline."""


@dataclass(frozen=True)
class Owner:
    """An interval of a pipeline."""

    pipeline: str
    start: datetime
    end: datetime

    @classmethod
    def of_run(cls, marker: Any) -> Owner | None:
        """The one whose run wrote the marker; ``None`` if it does not say."""
        try:
            start, end = (datetime.fromisoformat(marker[name]) for name in ("interval_start", "interval_end"))
            known = None not in (start.tzinfo, end.tzinfo)
            return cls(marker["pipeline"], start, end) if known else None
        except (KeyError, TypeError, ValueError):
            return None

    @classmethod
    def of_place(cls, marker: Mapping[str, Any]) -> Owner | None:
        """The one to which a published directory belongs. It is not that of the run after an undo or a release."""
        return cls.of_run(marker.get(PLACE, marker))

    def covers(self, other: Owner) -> bool:
        """Whether all of the other's interval is this one's, so that this one's output may replace the other's."""
        return self.pipeline == other.pipeline and self.start <= other.start and other.end <= self.end

    def __str__(self) -> str:
        return f"the interval {span(self.start, self.end)} of pipeline {self.pipeline}"


@dataclass(frozen=True)
class Claim:
    """An output of an ``attempt`` (id) of a ``run`` (its key) for the directory ``target``.

    ``undoes``: it is what the directory was before, so that what was published after that is compared instead.
    """

    target: Path
    run: str
    attempt: int
    owner: Owner
    undoes: bool = False

    @property
    def order(self) -> tuple[int, str]:
        """Of two that claim a place at once, the earlier attempt gets it."""
        return self.attempt, self.run.partition("-")[2]


@dataclass(frozen=True)
class Found:
    """What was found at ``place``: ``folder`` has its marker."""

    place: Path
    folder: Path
    owner: Owner
    run: str
    state: str | None = None  # of what is not published yet
    attempt: int = 0

    @property
    def order(self) -> tuple[int, str]:
        return self.attempt, self.run.partition("-")[2]

    @property
    def whose(self) -> str:
        """For messages."""
        did = "published" if self.state is None else "staged"
        return f"{self.owner}, which run {number_of(self.run)} has {did} there"

    def forbids(self, claim: Claim) -> bool:
        """Whether the claim must not be published."""
        if self.state is not None:
            # Accepted output is published, whoever covers it.
            return self.owner != claim.owner
        if claim.undoes and self.place == claim.target:
            return False
        return not claim.owner.covers(self.owner)


def real(target: Path) -> Path:
    """The directory by its only name: links on the way to it are followed. One at its end would be replaced."""
    return Path(os.path.realpath(target.parent)) / target.name


def refuse_taken(claims: Iterable[Claim], *, unpublished: bool = True) -> None:
    """Raise ``PlaceTaken`` if one must not be published. ``unpublished``: also for what is not published yet."""
    around = Around()
    for claim in claims:
        for found in around.look(claim.target, unpublished=unpublished):
            if found.state in (None, SEALED) and found.forbids(claim):
                raise PlaceTaken(_refusal(claim, found))


def settle(claims: Iterable[Claim]) -> None:
    """Raise ``PlaceTaken`` unless the places are those of the claims, which others see by now.

    Claims of later attempts are taken away from them.
    """
    claims = list(claims)
    again = True
    while again:
        again, around = False, Around()
        for claim in claims:
            for found in around.look(claim.target):
                if found.state == WRITING or not found.forbids(claim):
                    continue
                if found.state != CLAIMED or found.order <= claim.order:
                    raise PlaceTaken(_refusal(claim, found))
                # It fails if that one got its place meanwhile.
                throw_away(found.folder, found.place.parent / AREA)
                again = True


def is_of_another(own_folder: Path, owner: Owner | None) -> bool:
    """Whether a run's folder beside an output is one of another interval or pipeline."""
    owners = (Owner.of_run(marker_in(own_folder / name)) for name in _names(own_folder))
    return owner is not None and any(each not in (None, owner) for each in owners)


def cure(mine: Owner, other: Owner) -> str:
    """What to do about two that want one directory."""
    if mine.pipeline != other.pipeline:
        return "stage another path, as two pipelines cannot share a directory"
    if mine.start != other.start and mine.start.replace(tzinfo=None) == other.start.replace(tzinfo=None):
        twice = f"{mine.start:%Y-%m-%d %H:%M}"
        return f"the clock shows {twice} twice, so add its offset to the path (%z), or schedule the pipeline in UTC"
    return "put the whole interval into the path, like {interval.start:%Y-%m-%d}, or call run.stage_partitions"


def owned(place: Path, *, staged: bool = False) -> Iterator[Found]:
    """What belongs to somebody at a directory and in it. ``staged``: also what is staged and not published yet.

    Raises ``OSError``.
    """
    top = real(place)
    for found in Around().look(place, unpublished=staged):
        if top in (found.place, *found.place.parents) and found.state != WRITING:
            yield found


def release(found: Found) -> None:
    """Give it up, so that other intervals may publish there. What is staged is dropped. Raises ``OSError``."""
    if found.state is None:
        put_marker(found.folder, {**marker_in(found.folder), PLACE: None})
    else:
        throw_away(found.folder, found.place.parent / AREA)


class Around:
    """What is at, above and below directories. Each directory above them is read once."""

    def __init__(self) -> None:
        self._published: dict[Path, Found | None] = {}
        self._names: dict[Path, dict[str, list[str]]] = {}

    def look(self, target: Path, *, unpublished: bool = True) -> Iterator[Found]:
        """What belongs to somebody. What is not published yet comes first: it may become published meanwhile."""
        at = real(target)
        for place in (at, *at.parents):
            if unpublished:
                yield from self._beside(place.parent, [place.name])
            if place not in self._published:
                self._published[place] = _published(place)
            found = self._published[place]
            if found is not None:
                yield found
        yield from self._below(at, unpublished=unpublished)

    def _below(self, folder: Path, *, unpublished: bool) -> Iterator[Found]:
        if unpublished:
            yield from self._beside(folder, self._runs(folder))
        for each in _folders(folder):
            found = _published(each)
            if found is not None:
                yield found
            yield from self._below(each, unpublished=unpublished)

    def _beside(self, parent: Path, names: Iterable[str]) -> Iterator[Found]:
        """What is to become the directories ``names`` in ``parent``."""
        for name in names:
            for run in self._runs(parent).get(name, ()):
                yield from _unpublished(parent / name, run)

    def _runs(self, parent: Path) -> Mapping[str, Sequence[str]]:
        """The runs that have folders beside the directories in ``parent``, by the names of these."""
        if parent not in self._names:
            found: dict[str, list[str]] = {}
            for folder in _names(parent / AREA):
                name, _, run = folder.rpartition("@")
                found.setdefault(name, []).append(run)
            self._names[parent] = found
        return self._names[parent]


def _published(place: Path) -> Found | None:
    marker = marker_in(place)
    owner = Owner.of_place(marker)
    return None if owner is None else Found(place, place, owner, str(marker.get("run", "")))


def _unpublished(place: Path, run: str) -> Iterator[Found]:
    own = place.parent / AREA / f"{place.name}@{run}"
    found: list[Found] = []
    names: list[str] | None = None
    # A folder is renamed when it gets its place, and a listing may miss one that is being renamed.
    while names != (now := _names(own)):
        names, found = now, list(filter(None, (_of_attempt(place, own / name, run) for name in now)))
    yield from found


def _of_attempt(place: Path, folder: Path, run: str) -> Found | None:
    attempt, _, state = folder.name.partition(".")
    state = state.partition("-")[0]
    if not attempt.isdecimal() or (state != WRITING and not is_of(folder / "new", run)):
        return None  # it is published, and this is what it has replaced
    owner = Owner.of_run(marker_in(folder) or marker_in(folder / "new"))
    return None if owner is None else Found(place, folder, owner, run, state, int(attempt))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - a Path for each would take longer than all else here
    except (FileNotFoundError, NotADirectoryError):
        return []


def _folders(folder: Path) -> list[Path]:
    """The directories in a directory, without links to others."""
    if folder.is_symlink():
        return []
    try:
        with os.scandir(folder) as entries:
            return [folder / each.name for each in entries if each.name != AREA and each.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _refusal(claim: Claim, found: Found) -> str:
    """Why, and what to do."""
    target, place = claim.target, found.place
    if place == real(target):
        where = f"{target} belongs to {found.whose}"
    elif place in real(target).parents:
        where = f"{target} is inside {place}, which belongs to {found.whose}"
    else:
        where = f"{target} contains {place}, which belongs to {found.whose}"
    over = "" if found.state is None else " --staged"
    return f"{where}: {cure(claim.owner, found.owner)}, or give it up with 'retrofill places release{over} {place}'"
