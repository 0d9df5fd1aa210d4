"""INSERT, UPDATE and DELETE with RETURNING."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects.postgresql.dml import OnConflictDoNothing, OnConflictDoUpdate

from tests.simulation.memory.expressions import EXECUTION, Env, Expression, compile_expression
from tests.simulation.memory.froms import ROW, Compiler, Froms, Outcome, Output, conjuncts, lock_env
from tests.simulation.memory.rows import UPDATE, Row, Tx
from tests.simulation.memory.selecting import SelectPlan
from tests.simulation.memory.tables import MemoryTable, Unique


class Returning:
    def __init__(self, statement: Any, c: Compiler) -> None:
        columns = list(statement.exported_columns) if statement._returning else []
        self.there = bool(columns)
        self.names = [str(column.name) for column in columns]
        self._columns = [compile_expression(column, c) for column in columns]

    def row(self, env: Env) -> Output:
        """The returned row."""
        return tuple([column(env) for column in self._columns])


class InsertPlan:
    def __init__(self, statement: Any, c: Compiler) -> None:
        self.name = statement.table.name
        self.number = c.number(statement.table)
        self.conflict: Any = statement._post_values_clause
        self._select: SelectPlan | None = None
        self._values: dict[str, Expression] = {}
        if statement.select is not None:
            self._select = c.inner(statement.select)
            self._names = [str(getattr(name, "name", name)) for name in statement._select_names or ()]
        elif statement._multi_values:
            raise NotImplementedError("several rows of VALUES")
        else:
            given = statement._values or {}
            self._values = {getattr(k, "name", k): compile_expression(v, c) for k, v in given.items()}
        if isinstance(self.conflict, OnConflictDoUpdate):
            self._changes = {
                str(getattr(k, "name", k)): compile_expression(v, c)
                for k, v in self.conflict.update_values_to_set.items()
            }
            where = self.conflict.update_whereclause
            self._where = None if where is None else compile_expression(where, c)
        self.returning = Returning(statement, c)

    def run(self, env: Env) -> Outcome:
        execution = env[EXECUTION]
        table: MemoryTable = execution.tables[self.name]
        if self._select is not None:
            given = [dict(zip(self._names, row, strict=True)) for row in self._select.rows(env)]
        else:
            given = [{name: value(env) for name, value in self._values.items()}]
        out: list[Output] = []
        count = 0
        for values in given:
            landed = self._put(execution.tx, table, values, env)
            if landed is not None:
                count += 1
                out.append(self.returning.row({**env, self.number: landed}))
        return Outcome(self.returning.names, out if self.returning.there else [], count)

    def _put(self, tx: Tx, table: MemoryTable, values: dict[str, Any], env: Env) -> dict[str, Any] | None:
        while True:
            row, there = table.insert(tx, values, skip=self._skips)
            if row is not None:
                return row.pending
            assert there is not None
            if isinstance(self.conflict, OnConflictDoNothing):
                return None
            tx.lock(there, table.lock_mode(self._changes))
            old = there.seen_by(tx)
            if old is None:
                continue  # deleted meanwhile: retry the insert
            mine = {**env, self.number: old}
            if self._where is not None and not self._where(mine):
                return None
            return table.update(tx, there, old, {name: value(mine) for name, value in self._changes.items()})

    def _skips(self, unique: Unique) -> bool:
        if self.conflict is None:
            return False
        target = self.conflict.inferred_target_elements
        if not target:
            return True
        return unique.columns == tuple(str(getattr(column, "name", column)) for column in target)


class UpdatePlan:
    """An UPDATE, possibly with FROM. Each row is updated once."""

    def __init__(self, statement: Any, c: Compiler) -> None:
        self.name = statement.table.name
        self.number = c.number(statement.table)
        c.bound.add(statement.table)
        values = statement._values or {}
        others: dict[Any, None] = {}
        for part in [*conjuncts(statement._where_criteria), *values.values()]:
            for each in getattr(part, "_from_objects", ()):
                if each is not statement.table and each != statement.table:
                    others[each] = None
        self.froms = Froms([statement.table, *others], statement._where_criteria, c)
        self._changes = {str(getattr(k, "name", k)): compile_expression(v, c) for k, v in values.items()}
        self.returning = Returning(statement, c)

    def run(self, env: Env) -> Outcome:
        execution = env[EXECUTION]
        tx: Tx = execution.tx
        table: MemoryTable = execution.tables[self.name]
        mode = table.lock_mode(self._changes)
        changed: set[Row] = set()
        out: list[Output] = []
        for one in list(self.froms.envs(env)):
            row: Row = one[ROW, self.number]
            if row in changed:
                continue
            locked = lock_env(self.froms, one, [self.number], mode, skip=False)
            if locked is None:
                continue
            changed.add(row)
            new = table.update(
                tx, row, locked[self.number], {name: value(locked) for name, value in self._changes.items()}
            )
            if self.returning.there:
                out.append(self.returning.row({**locked, self.number: new}))
        return Outcome(self.returning.names, out, len(changed))


class DeletePlan:
    def __init__(self, statement: Any, c: Compiler) -> None:
        self.name = statement.table.name
        self.number = c.number(statement.table)
        self.froms = Froms([statement.table], statement._where_criteria, c)
        self.returning = Returning(statement, c)

    def run(self, env: Env) -> Outcome:
        execution = env[EXECUTION]
        table = execution.tables[self.name]
        out: list[Output] = []
        count = 0
        for one in list(self.froms.envs(env)):
            locked = lock_env(self.froms, one, [self.number], UPDATE, skip=False)
            if locked is not None:
                execution.tx.write(table, one[ROW, self.number], None)
                count += 1
                out.append(self.returning.row(locked))
        return Outcome(self.returning.names, out if self.returning.there else [], count)
