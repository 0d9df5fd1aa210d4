"""SELECT: order, groups, limits and row locks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any

from sqlalchemy import Table
from sqlalchemy.sql import operators as op
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.selectable import CompoundSelect, Select

from tests.simulation.memory.expressions import Env, compile_expression
from tests.simulation.memory.froms import Compiler, Froms, Outcome, Output, leaves, lock_env
from tests.simulation.memory.rows import NO_KEY_UPDATE, SHARE, UPDATE


class SelectPlan:
    def __init__(self, statement: Select[Any], c: Compiler) -> None:
        around = set() if c.outer is None else c.outer.bound
        froms = list(statement.get_final_froms())
        kept = [each for each in froms if not (each in around and len(froms) > 1)]
        if len(kept) != len(froms) and not kept:
            kept = froms
        self.c = c
        self.froms = Froms(kept, statement._where_criteria, c)
        columns = list(statement.selected_columns)
        self.names = [str(getattr(column, "name", None) or f"column_{n}") for n, column in enumerate(columns)]
        self._columns = [compile_expression(column, c) for column in columns]
        self._order = [(compile_expression(_bare(o), c), _descends(o)) for o in statement._order_by_clauses]
        self._group = [compile_expression(g, c) for g in statement._group_by_clauses]
        self._limit = None if statement._limit_clause is None else compile_expression(statement._limit_clause, c)
        self._offset = None if statement._offset_clause is None else compile_expression(statement._offset_clause, c)
        self._distinct = [compile_expression(d, c) for d in _distinct_on(statement)]
        locking = statement._for_update_arg
        self._mode = self._skip = None
        if locking is not None:
            self._mode = SHARE if locking.read else NO_KEY_UPDATE if locking.key_share else UPDATE
            self._skip = bool(locking.skip_locked)
            all_leaves = [leaf for each in kept for leaf in leaves(each)]
            wanted = all_leaves if locking.of is None else [getattr(o, "table", o) for o in locking.of]
            self._targets = [c.number(leaf) for leaf in all_leaves if isinstance(leaf, Table) and leaf in wanted]

    def run(self, env: Env) -> Outcome:
        rows = self.rows(env)
        return Outcome(self.names, rows, len(rows))

    def any(self, env: Env) -> bool:
        """Whether there is any row."""
        skipped = 0 if self._offset is None else self._offset(env)
        return next(islice(self.froms.envs(env), skipped, None), None) is not None

    def rows(self, env: Env) -> list[Output]:
        found: Iterable[Env] = self.froms.envs(env)
        limit = None if self._limit is None else self._limit(env)
        if self.c.aggregates or self._group:
            found = self._groups(env, list(found))
        if self._order:
            found = self._ordered(list(found))
        if self._distinct:
            found = self._first_of_each(found)
        if self._mode is not None:
            found = self._locked(list(found))
        if self._offset is not None:
            raise NotImplementedError("OFFSET but in EXISTS")
        # Rows beyond the limit are not locked.
        return [tuple([column(one) for column in self._columns]) for one in islice(found, limit)]

    def _groups(self, env: Env, found: list[Env]) -> Iterable[Env]:
        groups: dict[Output, list[Env]] = {} if self._group else {(): []}
        for one in found:
            groups.setdefault(tuple(key(one) for key in self._group), []).append(one)
        for members in groups.values():
            yield {**(members[0] if members else env), "group": members}

    def _ordered(self, found: list[Env]) -> list[Env]:
        for key, descends in reversed(self._order):
            # Nulls last, as in Postgres for ascending order.
            keyed = [((value is None, 0 if value is None else value), one) for one in found for value in [key(one)]]
            keyed.sort(key=itemgetter(0), reverse=descends)
            found = [one for _, one in keyed]
        return found

    def _first_of_each(self, found: Iterable[Env]) -> Iterator[Env]:
        seen = set()
        for one in found:
            key = tuple(part(one) for part in self._distinct)
            if key not in seen:
                seen.add(key)
                yield one

    def _locked(self, found: Iterable[Env]) -> Iterator[Env]:
        assert self._mode is not None
        for one in found:
            locked = lock_env(self.froms, one, self._targets, self._mode, skip=bool(self._skip))
            if locked is not None:
                yield locked


class UnionPlan:
    """UNION ALL."""

    def __init__(self, statement: CompoundSelect[Any], c: Compiler) -> None:
        if statement.keyword.name != "UNION_ALL":
            raise NotImplementedError(str(statement.keyword))
        self._parts = [c.inner(each) for each in statement.selects]

    def run(self, env: Env) -> Outcome:
        rows = [row for part in self._parts for row in part.rows(env)]
        return Outcome(self._parts[0].names, rows, len(rows))


def _bare(order: Any) -> Any:
    return order.element if isinstance(order, UnaryExpression) and order.modifier is not None else order


def _descends(order: Any) -> bool:
    return isinstance(order, UnaryExpression) and order.modifier is op.desc_op


def _distinct_on(statement: Any) -> list[Any]:
    found = list(getattr(statement._pre_columns_clause, "_distinct_on", ()))
    if statement._distinct and not found:
        raise NotImplementedError("DISTINCT")
    return found
