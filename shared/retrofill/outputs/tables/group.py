"""Groups: the runs of one accepted attempt whose staged rows one commit publishes.

Delta fences a commit by the id of its group. That works because an attempt's groups are a fixed tree, derived from the
runs whose output was accepted: all of them first, and the two halves of a group that was refused.
``docs/decisions/groups.md`` has the reasons.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Callable, Iterable

from retrofill.outputs.tables.key import Key
from retrofill.outputs.tables.marker import ids_text, moments_text
from retrofill.protocol.interval import Interval, interval_of
from retrofill.protocol.launch import Launch, LaunchedRun
from retrofill.protocol.table_output import TableOutput


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
