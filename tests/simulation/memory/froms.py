"""FROM and WHERE: selects the row combinations of a statement, and locks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import CTE, Join, Table
from sqlalchemy.sql import operators as op
from sqlalchemy.sql import visitors
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.selectable import Alias, CompoundSelect, Lateral, Select, TableValuedAlias

from tests.simulation.memory.expressions import EXECUTION, Env, Expression, compile_expression
from tests.simulation.memory.rows import Row, Tx
from tests.simulation.memory.tables import MemoryTable

if TYPE_CHECKING:
    from tests.simulation.memory.selecting import SelectPlan

Output = tuple[Any, ...]
Source = Callable[[Env], Iterator[Env]]
ROW = "row"  # env[ROW, number]: the row behind env[number]


@dataclass
class Execution:
    """One execution of a statement. It sees what was committed when it began."""

    tx: Tx
    tables: dict[str, MemoryTable]
    now: Callable[[], Any]
    ctes: dict[int, list[dict[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """A statement's result: columns and rows, or the number of changed rows."""

    names: list[str]
    rows: list[Output]
    rowcount: int


class Compiler:
    """Compiles one statement. Subqueries share its FROM numbers and parameters."""

    def __init__(self, parameters: dict[str, int], outer: Compiler | None = None) -> None:
        self.outer = outer
        self.parameters = parameters
        self.numbers: dict[Any, int] = {} if outer is None else outer.numbers
        # FROMs in scope, including those of outer queries.
        self.bound: set[Any] = set() if outer is None else set(outer.bound)
        # Recursive CTEs being evaluated: the environment holds one of their rows.
        self.working: set[Any] = set() if outer is None else outer.working
        self.aggregates = False

    def number(self, selectable: Any) -> int:
        """The number of a FROM."""
        return self.numbers.setdefault(selectable, len(self.numbers))

    def parameter(self, node: Any) -> int:
        """The index of a parameter."""
        return self.parameters[node.key]

    def inner(self, statement: Any) -> SelectPlan:
        """A subquery."""
        from tests.simulation.memory.selecting import SelectPlan  # circular import

        return SelectPlan(statement, Compiler(self.parameters, self))


def source(selectable: Any, c: Compiler) -> Source:
    """Environments, one per row of a FROM joined to those before it."""
    if isinstance(selectable, Join):
        return _join(selectable, c)
    number = c.number(selectable)
    c.bound.add(selectable)
    if selectable in c.working:
        return lambda env: iter((env,))
    if isinstance(selectable, Table):
        return _table_source(selectable.name, number)
    if isinstance(selectable, TableValuedAlias):
        return _unnest_source(selectable, number, c)
    if isinstance(selectable, CTE):
        return _cte_source(selectable, number, c)
    if isinstance(selectable, Lateral):
        return _lateral_source(selectable, number, c)
    if isinstance(selectable, Alias) and isinstance(selectable.element, Table):
        return _table_source(selectable.element.name, number)
    raise NotImplementedError(f"FROM {type(selectable).__name__}")


def _table_source(name: str, number: int) -> Source:
    def scan(env: Env) -> Iterator[Env]:
        execution = env[EXECUTION]
        tx = execution.tx
        for row in execution.tables[name].rows:
            values = row.pending if row.writer is tx else row.committed
            if values is not None:
                yield {**env, number: values, (ROW, number): row}

    return scan


def _unnest_source(selectable: Any, number: int, c: Compiler) -> Source:
    function = selectable.element
    while not hasattr(function, "clauses"):
        function = function.element
    if function.name != "unnest":
        raise NotImplementedError(str(function))
    arrays = [compile_expression(argument, c) for argument in function.clauses]
    names = [column.name for column in selectable.c]

    def rows(env: Env) -> Iterator[Env]:
        columns = [array(env) for array in arrays]
        if len(names) > len(columns):
            columns.append(range(1, len(columns[0]) + 1))
        for values in zip(*columns, strict=True):
            yield {**env, number: dict(zip(names, values, strict=True))}

    return rows


def _cte_source(selectable: CTE, number: int, c: Compiler) -> Source:
    element: Any = selectable.element
    if isinstance(element, Insert | Select):
        from tests.simulation.memory.changing import InsertPlan  # circular import

        plan = InsertPlan(element, Compiler(c.parameters, c)) if isinstance(element, Insert) else c.inner(element)

        def made_once(env: Env) -> Iterator[Env]:
            made = env[EXECUTION].ctes
            if number not in made:
                outcome = plan.run(env)
                made[number] = [dict(zip(outcome.names, row, strict=True)) for row in outcome.rows]
            for values in made[number]:
                yield {**env, number: values}

        return made_once
    if isinstance(element, CompoundSelect) and selectable.recursive:
        return _recursive_source(selectable, number, c)
    raise NotImplementedError(f"WITH {type(element).__name__}")


def _recursive_source(selectable: CTE, number: int, c: Compiler) -> Source:
    union: Any = selectable.element
    first, following = union.selects
    # The recursive part refers to the CTE as its first part created it: both are the same FROM.
    for each in _restated(selectable):
        c.numbers[each] = number
        c.working.add(each)
    names = [column.name for column in first.selected_columns]
    start, again = c.inner(first), c.inner(following)

    def rows(env: Env) -> Iterator[Env]:
        made = env[EXECUTION].ctes
        if number not in made:
            all_rows = newest = [dict(zip(names, row, strict=True)) for row in start.rows(env)]
            while newest:
                newest = [
                    dict(zip(names, row, strict=True))
                    for values in newest
                    for row in again.rows({**env, number: values})
                ]
                all_rows = all_rows + newest
            made[number] = all_rows
        for values in made[number]:
            yield {**env, number: values}

    return rows


def _restated(selectable: Any) -> Iterator[Any]:
    while (selectable := selectable._restates) is not None:
        yield selectable


def _lateral_source(selectable: Any, number: int, c: Compiler) -> Source:
    element = selectable.element
    while not isinstance(element, Select):
        element = element.element
    plan = c.inner(element)
    names = [column.name for column in element.selected_columns]

    def rows(env: Env) -> Iterator[Env]:
        for row in plan.rows(env):
            yield {**env, number: dict(zip(names, row, strict=True))}

    return rows


def _join(join: Join, c: Compiler) -> Source:
    left, right = source(join.left, c), source(join.right, c)
    condition = compile_expression(join.onclause, c)
    numbers = [(c.number(leaf), [column.name for column in leaf.c]) for leaf in leaves(join.right)]

    def rows(env: Env) -> Iterator[Env]:
        for one in left(env):
            found = False
            for both in right(one):
                if condition(both):
                    found = True
                    yield both
            if join.isouter and not found:
                yield {**one, **{number: dict.fromkeys(names) for number, names in numbers}}

    return rows


def leaves(selectable: Any) -> list[Any]:
    """The FROMs inside joins."""
    return [*leaves(selectable.left), *leaves(selectable.right)] if isinstance(selectable, Join) else [selectable]


class Froms:
    """FROM and WHERE. Each condition is evaluated as soon as all its rows are bound."""

    def __init__(self, froms: Sequence[Any], where: Iterable[Any], c: Compiler) -> None:
        self.c = c
        # Bind all FROMs before compiling: a condition may refer to any of them.
        for each in froms:
            for leaf in leaves(each):
                c.number(leaf)
                c.bound.add(leaf)
        sources = [source(each, c) for each in froms]
        place = {leaf: n for n, each in enumerate(froms) for leaf in leaves(each)}
        conditions: list[list[Expression]] = [[] for _ in range(len(froms) + 1)]
        self.all: list[Expression] = []
        for part in conjuncts(where):
            compiled = compile_expression(part, c)
            about = [place[f] + 1 for f in part._from_objects if f in place]
            inner = _has_subquery(part)
            conditions[len(froms) if inner or not about else max(about)].append(compiled)
            self.all.append(compiled)
        self._steps = list(zip(sources, conditions[1:], strict=True))
        self._first = conditions[0]

    def envs(self, env: Env) -> Iterator[Env]:
        """Every row combination that satisfies the conditions."""
        if _all_hold(self._first, env):
            yield from self._from(env, 0)

    def _from(self, env: Env, n: int) -> Iterator[Env]:
        if n == len(self._steps):
            yield env
            return
        rows, conditions = self._steps[n]
        for one in rows(env):
            if _all_hold(conditions, one):
                yield from self._from(one, n + 1)

    def holds(self, env: Env) -> bool:
        """Whether one combination still satisfies the conditions."""
        return _all_hold(self.all, env)


def _all_hold(conditions: Iterable[Expression], env: Env) -> bool:
    """Same as ``all(…)`` but faster: this is every statement's innermost loop."""
    for condition in conditions:  # noqa: SIM110 - a generator takes twice as long
        if not condition(env):
            return False
    return True


def conjuncts(where: Iterable[Any]) -> Iterator[Any]:
    """The terms of a conjunction."""
    for part in where:
        if getattr(part, "operator", None) is op.and_ and hasattr(part, "clauses"):
            yield from conjuncts(part.clauses)
        else:
            yield part


def _has_subquery(part: Any) -> bool:
    return any(isinstance(node, Select) for node in visitors.iterate(part))


def lock_env(froms: Froms, env: Env, targets: Sequence[int], mode: str, *, skip: bool) -> Env | None:
    """Lock the rows of one combination; after a wait, check their newest versions again.

    Returns ``None`` if the combination is skipped.
    """
    tx = env[EXECUTION].tx
    for number in targets:
        row: Row | None = env.get((ROW, number))
        if row is None:
            continue
        if not tx.lock(row, mode, skip=skip):
            return None
        newest = row.seen_by(tx)
        if newest is None:
            return None
        if newest is not env[number]:
            env = {**env, number: newest}
            if not froms.holds(env):
                return None
    return env
