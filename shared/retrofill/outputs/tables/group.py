"""Groups, the runs of one accepted attempt whose staged rows one commit publishes, and the metadata of Retrofill's commits
in the table's own history.

Delta fences a commit by the id of its group. That works because an attempt's groups are a fixed tree, derived from the
runs whose output was accepted: all of them first, and the two halves of a group that was refused.
``docs/decisions/groups.md`` has the reasons. Whether a table's partitions keep the rows of a group's intervals in different
files is found out here, too.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from datetime import datetime, time, timezone
from itertools import groupby
from typing import Any, Callable, Iterable, Mapping, Sequence, Tuple

from retrofill.outputs.kept import NotKept
from retrofill.outputs.tables.key import Key
from retrofill.protocol.launch import Interval, Launch, LaunchedRun, interval_of
from retrofill.protocol.table_output import TableOutput, parts_of

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


_TRANSFORM = re.compile(r"(?P<function>\w+)\((?P<column>.+)\)\Z")
_Begins = Callable[[datetime], bool]


def _hour(moment: datetime) -> bool:
    return (moment.minute, moment.second, moment.microsecond) == (0, 0, 0)


def _day(moment: datetime) -> bool:
    return moment.time() == time()


# Whether a moment begins a partition, by transform. The identity of a column keeps any two values apart.
_BEGINS: Mapping[str, _Begins] = {
    "identity": lambda _: True,
    "hours": _hour,
    "days": _day,
    "months": lambda moment: moment.day == 1 and _day(moment),
    "years": lambda moment: (moment.month, moment.day) == (1, 1) and _day(moment),
}


def transforms(session: Any, table: str) -> list[str]:
    """The partition transforms of an Iceberg table as Spark shows them, like ``days(ts)``."""
    rows = session.sql(f"DESCRIBE TABLE {table}").collect()
    # A column may have any name.
    rows = rows[len(session.table(table).columns) :]
    names = [row.col_name for row in rows]
    if "# Partitioning" in names:
        parts = [row for row in rows[names.index("# Partitioning") + 1 :] if row.col_name.startswith("Part ")]
        return [row.data_type for row in parts]
    if "# Partition Information" in names:
        return [row.col_name for row in rows[names.index("# Partition Information") + 2 :] if row.data_type]
    return []


def separates(partitions: Sequence[str], group: Group) -> bool:
    """Whether partition transforms keep the rows of the group's intervals apart."""
    key = Key.of(group.output)
    if key.is_range:
        ends = _ends(key, group)
        found = map(_parsed, partitions)
        return any(_is(column, key.column) and all(map(_BEGINS.get(how, _never), ends)) for how, column in found)
    own = [number for number, each in enumerate(key.columns) if is_partitioned_by(partitions, each.name)]
    return _are_apart([{tuple(value[n] for n in own) for value in key.values(each)} for each in group.intervals])


def is_partitioned_by(partitions: Sequence[str], column: str) -> bool:
    """Whether partition transforms keep the values of a column apart."""
    return any(how == "identity" and _is(of, column) for how, of in map(_parsed, partitions))


def _parsed(partition: str) -> tuple[str, str]:
    """The name of a transform, and that of its column."""
    found = _TRANSFORM.match(partition)
    return (found["function"], found["column"]) if found else ("identity", partition)


def _is(column: str, name: str) -> bool:
    return column.lower() == name.lower() or parts_of(column)[-1].lower() == name.lower()


def _never(_: datetime) -> bool:
    return False


def _ends(key: Key, group: Group) -> set[datetime]:
    """The moments at which its intervals begin and end, as the column has them: timestamps are in UTC."""
    zoned = key.type == "timestamp"
    ends = (moment for each in group.intervals for moment in _both(each if zoned else key.local(each)))
    return {(moment.astimezone(timezone.utc) if zoned else moment).replace(tzinfo=None) for moment in ends}


def _both(interval: Interval) -> tuple[datetime, datetime]:
    return interval.start, interval.end


def _are_apart(values: Sequence[set[tuple[object, ...]]]) -> bool:
    """Whether no value is in two of these."""
    return sum(map(len, values)) == len({value for each in values for value in each})
