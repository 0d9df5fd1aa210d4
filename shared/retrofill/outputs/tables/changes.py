"""Finds the rows that an undo restores, and whether those it would replace are still the ones that the undone runs published."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import takewhile
from typing import Any, Iterator, Mapping, Sequence

from retrofill.outputs.kept import NotKept
from retrofill.outputs.publication import PublishedAgain
from retrofill.outputs.tables.group import Group, Member
from retrofill.outputs.tables.marker import Commit, commit_of, first_of_backfill, not_kept
from retrofill.outputs.tables.states import aligned, as_of, contents, same_rows


class Versioned:
    """A part of ``Format``, of tables that remember earlier versions and commit all or nothing."""

    session: Any
    table: str
    fenced = True

    def history(self) -> Sequence[Commit]:
        """All commits to what readers see, the latest first, as far as the table remembers them."""
        raise NotImplementedError

    def at(self, number: str) -> Any:
        """The whole table at a version of that number."""
        return as_of(self.session, self.table, int(number) if number else None)

    def is_begun(self, group: Group) -> bool:  # noqa: ARG002 - of any group
        """Never is a part of a group published."""
        return False

    def rows_before(self, group: Group) -> Any:
        """The rows that the intervals of an undo's runs had before the undone backfill. Raises ``NotKept``."""
        commits = self.history()
        by_version: dict[int | None, list[Member]] = {}
        for member in group.members:
            commit = commit_of(commits, group.launch.installation, member.output.undoes)
            if commit is None:
                raise not_kept(self.table, member.output.undoes)
            first = first_of_backfill(commits, commit, (member.run.interval_start, member.run.interval_end))
            by_version.setdefault(first.before, []).append(member)
        schema = self.session.table(self.table).schema
        parts = [
            (as_of(self.session, self.table, at), replace(group, members=tuple(members)))
            for at, members in by_version.items()
        ]
        return reduce(
            lambda one, other: one.unionAll(other), (aligned(rows, schema).where(of.condition) for rows, of in parts)
        )

    def changed(self, group: Group) -> Mapping[int, Exception]:
        """The runs of an undo that must not be published, by id, and why. Empty for other groups."""
        undoes = undoing(group)
        if not undoes:
            return {}
        commits = self.history()
        found: dict[int, Exception] = {}
        by_commit: dict[int, tuple[Commit, list[Member]]] = {}
        for member in undoes:
            commit = _undone(commits, group, member)
            if commit is None:
                found[member.run.id] = not_kept(self.table, member.output.undoes)
            else:
                by_commit.setdefault(commit.version, (commit, []))[1].append(member)
        for commit, members in by_commit.values():
            part = replace(group, members=tuple(members))
            since = takewhile(lambda each: each is not commit, commits)  # noqa: B023 - consumed within this turn
            try:
                published, present = as_of(self.session, self.table, commit.version), self.session.table(self.table)
            except NotKept as e:
                found.update({member.run.id: e for member in members})
                continue
            # To rename a column is no commit.
            if published.columns == present.columns and all(each.is_of_another(part.marker) for each in since):
                continue
            for member in _differing(part, published, present):
                found[member.run.id] = published_again(member)
        return found


def undoing(group: Group) -> list[Member]:
    """Those that undo others' output, but not over changes that were made since."""
    return [each for each in group.members if each.output.undoes and not each.run.over_changes]


def published_again(member: Member) -> PublishedAgain:
    """Why an undo is refused."""
    return PublishedAgain(
        f"the rows of {member.output.table} were changed after run {member.output.undoes} had published them, so its undo "
        "leaves them alone"
    )


def _undone(commits: Any, group: Group, member: Member) -> Commit | None:
    """The commit whose rows the undo replaces: that of the undone run, or of another undo that failed after it restored."""
    of = (group.launch.installation, member.output.undoes)
    return commit_of(commits, *of, undo=True) or commit_of(commits, *of)


def _differing(group: Group, published: Any, present: Any) -> Iterator[Member]:
    """The members whose intervals have other rows in the two states."""
    if same_rows(published, present, group.condition):
        return
    singles = group.singles()
    before, now = contents(aligned(published, present.schema), singles), contents(present, singles)
    yield from (member for member, one, other in zip(group.members, before, now) if one != other)
