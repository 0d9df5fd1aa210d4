"""Records of publications into Hive tables: tables that have what a publication replaced, as partitions of the old locations.

``delays__retrofill_3f2a9c01d4_1cprxs0_1cpt5uo_25_1_kept_20260131`` is that of the staged table whose name it begins with.
It goes after that day. Its properties say which runs were published, and what their rows were.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Iterator, Mapping

from retrofill.outputs.kept import AREA, today
from retrofill.outputs.tables.group import Group, Member, overlap
from retrofill.outputs.tables.hive_partitions import Partitions, Spec, describe, files_of, recover, text
from retrofill.outputs.tables.protocol import OURS, drop, properties_of
from retrofill.protocol.table_output import joined, parts_of

TARGET = "retrofill.target"
# Of a table that a script writes, perhaps by its directory.
LENT = "retrofill.lent"
_RUN = "retrofill.run."
_KEPT = "_kept_"
# Of a staged table, or of its record.
_NAME = re.compile(rf".*{OURS}[0-9a-f]+_([0-9a-z]+)_([0-9a-z]+)_([0-9]+)_[0-9]+(?:{_KEPT}([0-9]{{8}}))?\Z")


@dataclass(frozen=True)
class Recorded:
    """A run in a record. ``content``: of its rows once it was published; empty before. ``undoes``: the run that it undoes, or 0."""

    start: datetime
    end: datetime
    undoes: int
    content: str

    def __str__(self) -> str:
        return f"{self.start.isoformat()} {self.end.isoformat()} {self.undoes} {self.content}"

    @classmethod
    def of(cls, value: str) -> Recorded:
        start, end, undoes, content = value.split(" ", 3)
        return cls(datetime.fromisoformat(start), datetime.fromisoformat(end), int(undoes), content)

    def overlaps(self, member: Member) -> bool:
        return overlap((self.start, self.end), (member.run.interval_start, member.run.interval_end))


@dataclass(frozen=True)
class Record:
    """The record of what was published from one staged table. ``name``: whole. ``runs``: by id."""

    name: str
    attempt: int
    about: Mapping[str, str]
    runs: Mapping[int, Recorded]

    def is_of(self, group: Group, backfill: str | None = None) -> bool:
        """Whether it is of the group's installation, and of that backfill."""
        return self.about.get("retrofill.installation") == group.launch.installation and (
            backfill in (None, self.about.get("retrofill.backfill_id"))
        )


def record_of(session: Any, staged: str) -> Record | None:
    """The record of what was published from a staged table, if anything was begun to be."""
    *namespace, name = parts_of(staged)
    found = _tables(session, namespace, f"{name}{_KEPT}*")
    return None if not found else _read(session, joined([*namespace, found[0]]))


def begin(session: Any, group: Group) -> Record:
    """The record of a group that is about to be published. It names the runs from now on."""
    output = group.output
    record = record_of(session, output.staged)
    if record is None:
        *namespace, name = parts_of(output.staged)
        until = today() + timedelta(days=group.launch.keep_replaced_days)
        kept = joined([*namespace, f"{name}{_KEPT}{until:%Y%m%d}"])
        about = {
            TARGET: output.table,
            "retrofill.installation": group.launch.installation,
            "retrofill.pipeline": group.launch.pipeline.name,
            "retrofill.backfill_id": group.launch.backfill_id,
        }
        create_like(session, kept, output.table, about)
        record = Record(kept, group.attempt, about, {})
    new = {each.run.id: _recorded(each, "") for each in group.members if each.run.id not in record.runs}
    _write(session, record.name, new)
    return Record(record.name, record.attempt, record.about, {**record.runs, **new})


def end(session: Any, record: Record, group: Group, contents: list[str]) -> None:
    """Record that the group is published. ``contents``: of the rows of its runs."""
    _write(session, record.name, {m.run.id: _recorded(m, content) for m, content in zip(group.members, contents)})


def create_like(session: Any, name: str, target: str, about: Mapping[str, str]) -> None:
    """Create a table like a target, whose files are in the target's directory. To drop it deletes no files."""
    location = f"{describe(session, target).location}/{AREA}/{parts_of(name)[-1]}"
    properties = ", ".join(f"{text(key)} = {text(value)}" for key, value in about.items())
    session.sql(
        f"CREATE TABLE IF NOT EXISTS {_in_session(name)} LIKE {_in_session(target)} LOCATION {text(location)} "
        f"TBLPROPERTIES ({properties})"
    )


def _in_session(name: str) -> str:
    """The name without its catalog, which ``LIKE`` does not take: it is the session's."""
    return joined(parts_of(name)[-2:])


def records(session: Any, group: Group) -> list[Record]:
    """Those of the installation whose intervals may be some of the group's, the latest first."""
    found = (_read(session, name) for name in _around(session, group.output.staged, group.output.table, kept=True))
    mine = (each for each in found if each.is_of(group))
    return sorted(mine, key=lambda each: each.attempt, reverse=True)


def is_over(name: str) -> bool:
    """Whether a table is a record that is not kept any longer."""
    found = _NAME.match(name)
    return bool(found and found[4] and found[4] < f"{today():%Y%m%d}")


def discard(session: Any, name: str) -> None:
    """Drop a staged table whose rows nobody publishes any more, or a record, with their files."""
    if not session.catalog.tableExists(name):
        return
    target = properties_of(session, name).get(TARGET)
    if target is not None and session.catalog.tableExists(target):
        _delete_files(session, name, target)
    drop(session, name)


def _delete_files(session: Any, name: str, target: str) -> None:
    """A metastore deletes the files of managed tables, wherever their partitions are, so they become those of one."""
    if LENT in properties_of(session, name) and files_of(session, name):
        recover(session, name)
    own = Partitions(session, name)
    locations = {spec: found.location for spec in own.names() if (found := own.get(spec)) is not None}
    # What a table had before its first publication was made by others.
    ours = {spec: location for spec, location in locations.items() if f"/{AREA}/" in location and OURS in location}
    for other in (target, *_around(session, name, target)):
        if ours:
            ours = _without(ours, Partitions(session, other))
    if ours:
        # To drop a table of ours deletes no files of a metastore's.
        *namespace, last = parts_of(name)
        doomed = joined([*namespace, f"{last}_doomed"])
        session.sql(f"CREATE TABLE IF NOT EXISTS {_in_session(doomed)} LIKE {_in_session(name)}")
        Partitions(session, doomed).add({**ours})
        session.sql(f"DROP TABLE IF EXISTS {doomed} PURGE")


def _without(locations: Mapping[Spec, str], other: Partitions) -> dict[Spec, str]:
    """Those to which another table does not refer."""
    shared = {spec for spec in other.names() if spec in locations}
    live = {found.location for spec in shared if (found := other.get(spec)) is not None}
    return {spec: location for spec, location in locations.items() if location not in live}


def _around(session: Any, name: str, target: str, *, kept: bool = False) -> Iterator[str]:
    """The other staged tables and records (or ``kept``: only these) of a target whose intervals overlap, by their names."""
    *namespace, last = parts_of(name)
    mine = _NAME.match(last.lower())
    for other in _tables(session, namespace, f"{parts_of(target)[-1]}{OURS}*"):
        found = _NAME.match(other)
        if found is None or other == last.lower() or (kept and not found[4]):
            continue
        if mine is None or overlap(_ends(mine), _ends(found)):
            yield joined([*namespace, other])


def _ends(found: re.Match[str]) -> tuple[datetime, datetime]:
    start, end = (datetime(1, 1, 1) + timedelta(seconds=int(found[n], 36)) for n in (1, 2))
    return start, end


def _tables(session: Any, namespace: list[str], pattern: str) -> list[str]:
    found = session.sql(f"SHOW TABLES IN {joined(namespace)} LIKE {text(pattern.lower())}").collect()
    return sorted(row.tableName.lower() for row in found)


def _read(session: Any, name: str) -> Record:
    about = properties_of(session, name)
    runs = {int(key[len(_RUN) :]): Recorded.of(value) for key, value in about.items() if key.startswith(_RUN)}
    found = _NAME.match(parts_of(name)[-1].lower())
    return Record(name, int(found[3]) if found else 0, about, runs)


def _recorded(member: Member, content: str) -> Recorded:
    run = member.run
    start, end = (each.astimezone(timezone.utc) for each in (run.interval_start, run.interval_end))
    return Recorded(start, end, member.output.undoes, content)


def _write(session: Any, name: str, runs: Mapping[int, Recorded]) -> None:
    if runs:
        values = ", ".join(f"{text(f'{_RUN}{id}')} = {text(str(each))}" for id, each in runs.items())
        session.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({values})")
