"""Hive tables, also in Glue: a publication points the partitions of an interval at the directories that were staged.

A metastore has no conditional change, so what fences a former publisher is that its session was closed before the next one
begins (``fenced``). What a publication replaced stays where it is, and its record refers to it (``hive_records``).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Any, Collection, Mapping, Sequence

from retrofill.errors import first_line
from retrofill.outputs.cannot_stage import CannotStage, DoesNotFit
from retrofill.outputs.kept import AREA, NotKept
from retrofill.outputs.tables import hive_records as records
from retrofill.outputs.tables.changes import contents, published_again, undoing
from retrofill.outputs.tables.group import Group, Member, not_kept
from retrofill.outputs.tables.hive_partitions import (
    SESSION_CATALOG,
    Partition,
    Partitions,
    Spec,
    describe,
    files_of,
    name_of,
    recover,
)
from retrofill.outputs.tables.hive_records import LENT, TARGET, create_like
from retrofill.outputs.tables.key import CLOCKS, Key
from retrofill.outputs.tables.protocol import Burned, Filled, Looked, NotPublished, properties_of
from retrofill.protocol.launch import Interval
from retrofill.protocol.table_output import TableOutput, identifier, parts_of

# Spark writes no such lines, but others leave them out when they read.
_LINES = ("skip.header.line.count", "skip.footer.line.count")
_DYNAMIC = "hive.exec.dynamic.partition.mode"


class HiveTarget:
    """Implements ``Target``."""

    def __init__(self, session: Any, table: str) -> None:
        self._session = session
        self._table = table

    def refuse(self, conditions: Sequence[str]) -> None:  # noqa: ARG002 - ``refuse_partitions`` has seen the key
        properties = properties_of(self._session, self._table)
        if properties.get("transactional", "").lower() == "true":
            raise CannotStage(f"{self._table} is a transactional Hive table, which Spark does not write: stage another")
        lines = next((name for name in _LINES if properties.get(name, "0") != "0"), None)
        if lines is not None:
            raise CannotStage(
                f"{self._table} has {lines}={properties[lines]}, but Spark writes no such lines: unset it"
            )

    def create(self, staged: str, schema: Any) -> Filled:  # noqa: ARG002 - it is like the target
        create_like(self._session, staged, self._table, {TARGET: self._table})
        return Filled()

    def create_like(self, staged: str) -> Filled:
        self._permit_inserts()
        create_like(self._session, staged, self._table, {TARGET: self._table, LENT: "true"})
        return Filled()

    def write(self, rows: Any, output: TableOutput) -> None:
        from pyspark.errors import AnalysisException

        if isinstance(rows, Locations):
            Partitions(self._session, output.staged).add({**rows.of})
            return
        self._permit_inserts()
        try:
            rows.write.insertInto(output.staged)
        except AnalysisException as e:
            raise DoesNotFit(f"the rows break a rule of {self._table}: {first_line(e)}") from e

    def _permit_inserts(self) -> None:
        if describe(self._session, self._table).provider == "hive":
            # Only a directory of ours is written to.
            self._session.conf.set(_DYNAMIC, "nonstrict")


def written_by_script(session: Any, lent: str) -> str:
    """Which files a script wrote to a table, by its name or into its directory. They become partitions of it.

    Raises ``CannotStage`` if some are in no partition.
    """
    from pyspark.errors import AnalysisException

    files = files_of(session, lent)
    stray = next((each for each in files if "=" not in each.partition("/")[0]), None)
    if stray is not None:
        raise CannotStage(
            f"the script wrote {stray} into the directory that it was given, but only files in partitions are published: "
            "write with partitionBy, or to {stage_location:NAME}/day=2013-01-31"
        )
    if files:
        try:
            recover(session, lent)
        except AnalysisException as e:
            raise DoesNotFit(f"the partitions that the script wrote are none of its table: {first_line(e)}") from e
    return "\n".join(f"{name} {files[name]}" for name in sorted(files))


def refuse_partitions(session: Any, table: str, key: Key, intervals: Sequence[Interval]) -> None:
    """Raise ``CannotStage`` if partitions do not tell the intervals apart, or cannot be pointed at other files."""
    if parts_of(table)[0] != SESSION_CATALOG:
        raise CannotStage(f"{table} is not in {SESSION_CATALOG}, where Spark changes the locations of partitions")
    info = describe(session, table)
    own = {name.lower() for name in info.partitioned_by}
    other = next((each.name for each in key.columns if each.name.lower() not in own), None)
    if other is not None:
        raise CannotStage(
            f"{table} is not partitioned by {other!r}: of a {info.provider} table whole partitions are replaced, "
            f"so partition it by {key.column}, or use an Iceberg or Delta table"
        )
    if any(each.type in CLOCKS for each in key.columns):
        raise CannotStage(
            f"{table} is partitioned by the timestamp {key.column!r}, whose names depend on the session's clock: "
            "partition it by a date, or by text of a declared format"
        )
    if info.about.get("Partition Provider") != "Catalog":
        raise CannotStage(
            f"the partitions of {table} are not in its metastore: create it in one, or run MSCK REPAIR TABLE {table}"
        )
    partitions = Partitions(session, table)
    for spec in partitions.of_intervals(key, intervals):
        found = partitions.get(spec)
        if found is None:
            raise CannotStage(UNKNOWN_NAME.format(table=table, partition=name_of(spec)))
        try:
            refuse_other_readers(session, table, spec, found)
        except NotPublished as e:
            raise CannotStage(str(e)) from e


OTHER_READERS = (
    "the files of partition {partition} of {table} are read in another way than those of new partitions: "
    "set its file format and SerDe as the table's, or drop it"
)
UNKNOWN_NAME = (
    "{table} has a partition {partition} whose name Spark does not write, so it cannot be replaced: rename it"
)


class Overtaken(Exception):
    """Somebody else has changed the partitions meanwhile. Another try looks again."""


@dataclass(frozen=True)
class Locations:
    """Where the partitions were that an undo restores."""

    of: Mapping[Spec, str]


class Hive:
    """Implements ``Format``."""

    fixed = False
    fenced = False

    def __init__(self, session: Any, table: str) -> None:
        self.session = session
        self.table = table

    def identity(self) -> str:
        about = describe(self.session, self.table).about
        # Tables of several names may have one location, and partitions of their own.
        return f"hive {about.get('Database')}.{about.get('Table')} {about.get('Location')}"

    def groups(self, whole: Group) -> list[Group]:
        return [whole]

    def version(self) -> str:
        """Files may change while locations do not, so no two versions count as the same."""
        self.session.sql(f"REFRESH TABLE {self.table}")
        return uuid.uuid4().hex

    def number(self, version: str) -> str:  # noqa: ARG002 - no version can be read later
        return ""

    def at(self, version: str) -> Any:
        if not version:
            raise NotKept(f"{self.table} has no earlier versions")
        return self.session.table(version)

    def predecessor(self, published: str) -> str | None:
        """The record has what was replaced."""
        return published

    def conflicts_always(self) -> bool:
        return False

    def look(self, group: Group, *, again: bool) -> Looked:
        record = records.record_of(self.session, group.output.staged) if again else None
        if record is None:
            return Looked()
        return Looked(
            {
                run.id: record.name
                for run in group.runs
                if (found := record.runs.get(run.id)) is not None and found.content
            }
        )

    def is_begun(self, group: Group) -> bool:
        record = records.record_of(self.session, group.output.staged)
        return record is not None and any(run.id in record.runs for run in group.runs)

    def replace(self, rows: Any, group: Group) -> str | Burned:  # noqa: ARG002 - their files are published
        from pyspark.errors import AnalysisException

        staged, target = Partitions(self.session, group.output.staged), Partitions(self.session, self.table)
        self.session.sql(f"REFRESH TABLE {group.output.staged}")
        found = contents(self.session.table(group.output.staged), group.singles())
        present = self._present(target, group)
        wanted = self._wanted(staged, group, present)
        record = records.begin(self.session, group)
        self._remember(record, present, wanted)
        emptied = _emptied(group, wanted)
        try:
            for spec, location in wanted.items():
                if spec in present and present[spec].location != location:
                    target.set_location(spec, location)
            target.add({spec: at for spec, at in wanted.items() if spec not in present and spec not in emptied})
            for spec in emptied:
                # Its directory is empty by now: of a managed table, the metastore deletes that.
                target.drop(spec)
        except AnalysisException as e:
            if "PARTITIONS_NOT_FOUND" in str(e):
                raise Overtaken(f"a partition of {self.table} was dropped meanwhile") from e
            raise
        self._verify(target, group, {spec: at for spec, at in wanted.items() if spec not in emptied})
        self.session.sql(f"REFRESH TABLE {self.table}")
        records.end(self.session, record, group, found)
        return record.name

    def burn(self, group: Group, why: str) -> str | Burned:  # noqa: ARG002 - there is nothing to be burned
        return Burned(why, at_once=True)

    def keep(self, group: Group, versions: Collection[str], days: int) -> None:
        """The record keeps it."""

    def rows_before(self, group: Group) -> Locations:
        """Where the partitions of the intervals were before the undone backfill. Raises ``NotKept``."""
        found: dict[Spec, str] = {}
        known = records.records(self.session, group)
        for member in group.members:
            record = next((each for each in known if member.output.undoes in each.runs), None)
            if record is None:
                raise not_kept(self.table, member.output.undoes)
            backfill = record.about["retrofill.backfill_id"]
            same = (each for each in known if each.is_of(group, backfill))
            first = [each for each in same if any(run.overlaps(member) for run in each.runs.values())][-1]
            kept = Partitions(self.session, first.name)
            found.update({spec: at.location for spec, at in self._present(kept, _single(group, member)).items()})
        return Locations(found)

    def changed(self, group: Group) -> dict[int, Exception]:
        """The runs of an undo that must not be published, by id, and why."""
        undoes = undoing(group)
        if not undoes:
            return {}
        known = records.records(self.session, group)
        self.session.sql(f"REFRESH TABLE {self.table}")
        errors: dict[int, Exception] = {}
        for member in undoes:
            published = _published(known, member)
            if published is None:
                errors[member.run.id] = not_kept(self.table, member.output.undoes)
            elif not self._has_still(group, member, *published):
                errors[member.run.id] = published_again(member)
        return errors

    def _has_still(self, group: Group, member: Member, record: records.Record, content: str) -> bool:
        """Whether the interval's rows are those that were published. Columns that were added since do not count."""
        present = self.session.table(self.table)
        have = {name.lower() for name in present.columns}
        columns = self.session.table(record.name).columns
        if not {name.lower() for name in columns} <= have:
            return False
        rows = present.select(*map(identifier, columns))
        return contents(rows, [_single(group, member)]) == [content]

    def _present(self, table: Partitions, group: Group) -> dict[Spec, Partition]:
        """The partitions of the group's intervals."""
        found = {}
        for spec in table.of_intervals(Key.of(group.output), group.intervals):
            partition = table.get(spec)
            if partition is None:
                raise NotPublished(UNKNOWN_NAME.format(table=table.table, partition=name_of(spec)))
            found[spec] = partition
        return found

    def _wanted(self, staged: Partitions, group: Group, present: Mapping[Spec, Partition]) -> dict[Spec, str]:
        """Where each partition of the group's intervals is to be. One without rows gets an empty directory."""
        for spec, partition in present.items():
            refuse_other_readers(self.session, self.table, spec, partition)
        have = staged.of_intervals(Key.of(group.output), group.intervals)
        staged.add(dict.fromkeys(present.keys() - {*have}))
        return {spec: each.location for spec, each in self._present(staged, group).items()}

    def _remember(self, record: records.Record, present: Mapping[Spec, Partition], wanted: Mapping[Spec, str]) -> None:
        """Have the record refer to what is replaced: the last that was seen, if a former publisher came as far as this."""
        kept = Partitions(self.session, record.name)
        replaced = {spec: each.location for spec, each in present.items() if each.location != wanted[spec]}
        there = {*kept.names()} & replaced.keys()
        for spec in there:
            kept.set_location(spec, replaced[spec])
        kept.add({spec: at for spec, at in replaced.items() if spec not in there})

    def _verify(self, target: Partitions, group: Group, wanted: Mapping[Spec, str]) -> None:
        found = {spec: each.location for spec, each in self._present(target, group).items()}
        if found != wanted:
            other = name_of(sorted({*found.items()} ^ {*wanted.items()})[0][0])
            raise Overtaken(f"somebody else has changed the partition {other} of {self.table} at the same time")


def refuse_other_readers(session: Any, table: str, spec: Spec, partition: Partition) -> None:
    """Raise ``NotPublished`` if new files in a partition would be read in another way than they are written.

    Spark does not look at a partition's own if the table is one of its data sources.
    """
    if list(partition.readers) != list(partition.of_table) and describe(session, table).provider == "hive":
        raise NotPublished(OTHER_READERS.format(partition=name_of(spec), table=table))


def _single(group: Group, member: Member) -> Group:
    return replace(group, members=(member,))


def _emptied(group: Group, wanted: Mapping[Spec, str]) -> list[Spec]:
    """Partitions that an undo drops, as there were none: only these have directories of its own."""
    if not group.output.undoes:
        return []
    own = f"/{AREA}/{parts_of(group.output.staged)[-1]}/"
    return [spec for spec, location in wanted.items() if own.lower() in location.lower()]


def _published(known: list[records.Record], member: Member) -> tuple[records.Record, str] | None:
    """The record and content of the undone run, or of another undo of it that failed after it restored."""
    of = member.output.undoes
    for record in known:
        for run in record.runs.values():
            if run.undoes == of and run.content:
                return record, run.content
    return next(((each, each.runs[of].content) for each in known if of in each.runs and each.runs[of].content), None)
