"""Groups, the runs of one accepted attempt whose staged rows one commit publishes, and the metadata of Retrofill's commits
in the table's own history.

Delta fences a commit by the id of its group. That works because an attempt's groups are a fixed tree, derived from the
runs whose output was accepted: all of them first, and the two halves of a group that was refused.
``docs/decisions/groups.md`` has the reasons.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import groupby
from typing import Callable, Iterable, Mapping, Sequence, Tuple

from retrofill.outputs.kept import NotKept
from retrofill.outputs.tables.key import Key
from retrofill.protocol.launch import Interval, Launch, LaunchedRun, interval_of
from retrofill.protocol.table_output import TableOutput

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


@dataclass(frozen=True)
class Member:
    """A run of a group, and its output in the staged table that they share."""

    run: LaunchedRun
    output: TableOutput


@dataclass(frozen=True)
class Group:
    """Runs whose rows the accepted ``attempt`` (id) staged in one table, in the order of their intervals.

    ``review``: after how many reviews whose result was not published.
    """

    launch: Launch
    attempt: int
    members: tuple[Member, ...]
    review: int = 0

    @property
    def output(self) -> TableOutput:
        """The output that they share. ``undoes`` differs."""
        return self.members[0].output

    @property
    def runs(self) -> tuple[LaunchedRun, ...]:
        return tuple(each.run for each in self.members)

    @property
    def id(self) -> str:
        """Identifies the group in a table, wherever and whenever it is derived."""
        runs = f"{self.output.staged} {ids_text(run.id for run in self.runs)} {self.review}"
        digest = hashlib.sha256(runs.encode()).hexdigest()[:16]
        return f"retrofill {self.launch.installation} {self.attempt} {digest}"

    @property
    def condition(self) -> str:
        """The condition in SQL for the rows of all intervals."""
        return Key.of(self.output).condition(self.intervals)

    @property
    def intervals(self) -> list[Interval]:
        """In the pipeline's time zone."""
        return [interval_of(self.launch, run) for run in self.runs]

    @property
    def marker(self) -> dict[str, str]:
        """What its commit says of itself."""
        undoes = [each.output.undoes for each in self.members if each.output.undoes]
        return {
            "installation": self.launch.installation,
            "pipeline": self.launch.pipeline.name,
            "backfill_id": self.launch.backfill_id,
            "attempt_id": str(self.attempt),
            "group": self.id,
            "runs": ids_text(run.id for run in self.runs),
            "publication": str(max(run.publication for run in self.runs)),
            "column": self.output.formats or self.output.column,
            "intervals": moments_text((run.interval_start, run.interval_end) for run in self.runs),
            **({"undoes": ids_text(undoes)} if undoes else {}),
        }

    def only(self, wanted: Callable[[LaunchedRun], bool]) -> Group | None:
        """The group of these of its runs; ``None`` if there is none."""
        members = tuple(each for each in self.members if wanted(each.run))
        return replace(self, members=members) if members else None

    def halves(self) -> tuple[Group, Group]:
        """The two groups that take its place once it is refused."""
        middle = len(self.members) // 2
        return replace(self, members=self.members[:middle]), replace(self, members=self.members[middle:])

    def singles(self) -> list[Group]:
        """A group for each of its runs."""
        return [replace(self, members=(each,)) for each in self.members]


def groups_of(launch: Launch, attempt: int, runs: Iterable[LaunchedRun]) -> list[Group]:
    """The whole group of each table that an accepted ``attempt`` (id) staged, in the order of a run's outputs.

    ``runs``: all of its runs that were accepted, with their outputs. Those that wait for another review are part of the
    groups before that, too, because these are fixed.
    """
    found: dict[tuple[str, int], list[Member]] = {}
    for run in sorted(runs, key=lambda run: run.interval_start):
        for table in filter(None, map(TableOutput.of, run.outputs)):
            for review in range(run.review + 1):
                found.setdefault((table.staged, review), []).append(Member(run, table))
    return [Group(launch, attempt, tuple(members), review) for (_, review), members in found.items()]


def earlier_groups(group: Group, groups: Iterable[Group]) -> list[Group]:
    """Those of earlier reviews of the same table."""
    return [each for each in groups if each.output.staged == group.output.staged and each.review < group.review]
