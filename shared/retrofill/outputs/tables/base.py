"""The base of reviewed rows: how many rows of an interval a table had, and the sum of their hashes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, Sequence

from retrofill.outputs.base import Base, BaseChanged
from retrofill.outputs.kept import NotKept
from retrofill.outputs.tables.group import Group, Member
from retrofill.outputs.tables.protocol import Format
from retrofill.outputs.tables.states import contents, same_rows


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
