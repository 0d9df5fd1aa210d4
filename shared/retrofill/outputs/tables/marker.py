"""Metadata of Retrofill's commits in the table's own history, and that history."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import groupby
from typing import Iterable, Mapping, Sequence, Tuple

from retrofill.outputs.kept import NotKept

Moments = Tuple[datetime, datetime]


@dataclass(frozen=True)
class Commit:
    """A commit of a table. ``before``: the version that it changed, ``None`` if there was none.

    ``about``: what it says of itself if it is one of ours, else empty.
    """

    version: int
    before: int | None
    about: Mapping[str, str]

    def published(self, installation: str, run_id: int) -> bool:
        """Whether it published rows of this run."""
        return self.about.get("installation") == installation and run_id in ids_in(self.about.get("runs", ""))

    def restored(self, installation: str, run_id: int) -> bool:
        """Whether it undid this run."""
        return self.about.get("installation") == installation and run_id in ids_in(self.about.get("undoes", ""))

    def is_of_another(self, own: Mapping[str, str]) -> bool:
        """Whether it says that it replaced none of the intervals of ``own``, in the same pipeline."""
        if any(self.about.get(name) != own[name] for name in ("installation", "pipeline", "column")):
            return False
        theirs, ours = moments_in(self.about["intervals"]), moments_in(own["intervals"])
        return not any(overlap(one, other) for one in theirs for other in ours)


def commit_of(commits: Iterable[Commit], installation: str, run_id: int, *, undo: bool = False) -> Commit | None:
    """The last commit that published a run, or the ``undo`` of it. ``commits``: the latest first."""
    matches = Commit.restored if undo else Commit.published
    return next((each for each in commits if matches(each, installation, run_id)), None)


def first_of_backfill(commits: Sequence[Commit], commit: Commit, interval: Moments) -> Commit:
    """The first commit for that interval by the backfill of ``commit``: a run may have replaced a failed one's output."""
    same = ("installation", "backfill_id")
    return [
        each
        for each in commits
        if each.about
        and all(each.about.get(name) == commit.about[name] for name in same)
        and any(overlap(interval, theirs) for theirs in moments_in(each.about["intervals"]))
    ][-1]


def not_kept(table: str, run_id: int) -> NotKept:
    return NotKept(f"the commit of run {run_id} is no longer in the history of {table}: it cannot be undone")


def ids_text(ids: Iterable[int]) -> str:
    """Ids as ``1-3,7``: those of a range are consecutive."""
    parts = []
    for _, group in groupby(enumerate(sorted(set(ids))), key=lambda pair: pair[1] - pair[0]):
        found = [id for _, id in group]
        parts.append(str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}")
    return ",".join(parts)


class _Ids:
    def __init__(self, text: str) -> None:
        ends = (part.partition("-") for part in text.split(",") if part)
        self._ranges = [(int(first), int(last or first)) for first, _, last in ends]

    def __contains__(self, id: int) -> bool:
        return any(first <= id <= last for first, last in self._ranges)


def ids_in(text: str) -> _Ids:
    """The ids in a text of ``ids_text``."""
    return _Ids(text)


def merged(intervals: Iterable[Moments]) -> list[Moments]:
    """Intervals in order, adjacent ones as one."""
    found: list[Moments] = []
    for start, end in sorted(intervals):
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def moments_text(intervals: Iterable[Moments]) -> str:
    """Intervals in UTC as ``START/END,START/END``, adjacent ones as one."""
    in_utc = ((start.astimezone(timezone.utc), end.astimezone(timezone.utc)) for start, end in intervals)
    return ",".join(f"{start.isoformat()}/{end.isoformat()}" for start, end in merged(in_utc))


def moments_in(text: str) -> list[Moments]:
    """The intervals in a text of ``moments_text``."""
    pairs = (each.split("/") for each in text.split(","))
    return [(datetime.fromisoformat(start), datetime.fromisoformat(end)) for start, end in pairs]


def overlap(one: Moments, other: Moments) -> bool:
    return one[0] < other[1] and other[0] < one[1]
