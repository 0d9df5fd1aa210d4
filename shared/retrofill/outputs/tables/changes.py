"""Compares rows of a table with earlier states of it: those that an undo would replace with those that the undone runs
published, and those that a publication would replace with the base of its review, their number and the sum of their hashes."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import takewhile
from typing import Any, Iterator, Mapping, Sequence

from retrofill.errors import first_line
from retrofill.outputs.base import Base, BaseChanged
from retrofill.outputs.kept import NotKept
from retrofill.outputs.publication import PublishedAgain
from retrofill.outputs.tables.group import Commit, Group, Member, commit_of, first_of_backfill, not_kept
from retrofill.outputs.tables.protocol import Format
from retrofill.protocol.table_output import quoted


def as_of(session: Any, table: str, version: int | None) -> Any:
    """The whole table as it was at a version, empty for ``None``. Raises ``NotKept``."""
    from pyspark.errors import AnalysisException, IllegalArgumentException

    if version is None:
        return session.table(table).where("false")
    try:
        rows = session.sql(f"SELECT * FROM {table} VERSION AS OF {version}")
        # Spark Connect may look for it only now.
        rows.schema  # noqa: B018
    except (AnalysisException, IllegalArgumentException) as e:
        raise NotKept(f"version {version} of {table} cannot be restored: {first_line(e)}") from e
    return rows


def same_rows(one: Any, other: Any, condition: str) -> bool:
    """Whether two states of a table have the same rows that meet the condition, in any order."""
    return bool(_digest(aligned(one, other.schema), condition) == _digest(other, condition))


def aligned(rows: Any, schema: Any) -> Any:
    """Rows of an earlier state of a table with the columns that it has now: new ones are null, former ones left out."""
    from pyspark.sql.functions import col, lit

    have = {name.lower() for name in rows.columns}
    columns = (col(quoted(field.name)) if field.name.lower() in have else lit(None) for field in schema)
    return rows.select(*(each.cast(field.dataType).alias(field.name) for each, field in zip(columns, schema)))


def contents(rows: Any, singles: Sequence[Group]) -> list[str]:
    """Text for each group, the same for two states with the same rows of its intervals: one Spark job for all."""
    from pyspark.sql.functions import expr

    if not singles:
        return []
    whole = replace(singles[0], members=tuple(member for each in singles for member in each.members))
    whose = " ".join(f"WHEN {each.condition} THEN {number}" for number, each in enumerate(singles))
    hashed = rows.where(whole.condition).select(
        _hash(rows.schema).alias("hash"), expr(f"CASE {whose} END").alias("whose")
    )
    summed = hashed.groupBy("whose").agg(expr("count(*) AS number"), expr("sum(hash) AS total")).collect()
    found = {row.whose: f"{row.number} rows {row.total}" for row in summed}
    return [found.get(number, "0 rows") for number in range(len(singles))]


def _digest(rows: Any, condition: str) -> Any:
    """The number of rows and the sum of their hashes."""
    hashed = rows.where(condition).select(_hash(rows.schema).alias("hash"))
    return tuple(hashed.selectExpr("count(*)", "sum(hash)").collect()[0])


def _hash(schema: Any) -> Any:
    """The hash of a row, as a number that can be summed up."""
    from pyspark.sql.functions import col, struct, to_json, xxhash64

    columns = []
    for field in sorted(schema, key=lambda each: each.name.lower()):
        plain = not any(each in field.dataType.simpleString() for each in ("map<", "variant"))
        column = col(quoted(field.name))
        columns.append(column if plain else to_json(struct(column)))
        if field.nullable:
            # The hash passes over nulls.
            columns.append(column.isNull())
    return xxhash64(*columns).cast("decimal(38,0)")


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


def bases_of_table(table: Format, group: Group, session: Any) -> list[Base]:
    """The present state of the rows of each interval of a group, by one Spark job for all."""
    version = table.version()
    return [Base(version, content) for content in contents(session.table(table.table), group.singles())]


class ReviewedRows:
    """The approved state of the rows that a group replaces, by run, beside the present one."""

    def __init__(self, bases: Mapping[int, Base]) -> None:
        self._bases = bases
        # The version of the table that was compared last.
        self._compared = ""

    def changed(self, table: Format, group: Group, session: Any) -> dict[int, BaseChanged]:
        """The runs whose rows are others now, by id, and what to say of that."""
        reviewed = self._reviewed(group)
        if not reviewed:
            return {}
        version = self._compared = table.version()
        asked = [each for each in reviewed if self._bases[each.run.id].version != version]
        found = self._differing(table, group, asked, session.table(table.table))
        return {each.run.id: BaseChanged(f"the interval in {table.table}", str(each.output)) for each in found}

    def replaced_changes(self, table: Format, group: Group, published: str) -> set[int]:
        """The runs of which the commit that is this version replaced other rows than those that were compared."""
        before = table.predecessor(published)
        if before is None or before == table.number(self._compared):
            return set()
        replaced = table.at(before)
        return {each.run.id for each in self._differing(table, group, self._reviewed(group), replaced)}

    def _reviewed(self, group: Group) -> list[Member]:
        return [each for each in group.members if each.run.id in self._bases]

    def _differing(self, table: Format, group: Group, members: Sequence[Member], present: Any) -> list[Member]:
        """Those of the members whose rows differ from their bases."""
        singles = [replace(group, members=(each,)) for each in members]
        found = contents(present, singles)
        return [
            member
            for member, single, content in zip(members, singles, found)
            if content != self._bases[member.run.id].content and not self._same(table, single, present)
        ]

    def _same(self, table: Format, single: Group, present: Any) -> bool:
        """Whether only a column was added: then the same rows have other hashes."""
        number = table.number(self._bases[single.runs[0].id].version)
        try:
            before = table.at(number)
        except NotKept:
            return False
        return bool(before.schema != present.schema and same_rows(before, present, single.condition))
