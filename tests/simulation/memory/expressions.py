"""Compiles SQLAlchemy expressions to Python closures.

The closures take an environment: ``env[number of a FROM]`` holds that row's values. Nulls are
``None`` and propagate as in SQL. Anything that the store does not use raises
``NotImplementedError``.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column
from sqlalchemy.dialects.postgresql import JSONB, Range
from sqlalchemy.dialects.postgresql.ranges import MultiRange
from sqlalchemy.sql import elements as e
from sqlalchemy.sql import functions as f
from sqlalchemy.sql import operators as op
from sqlalchemy.sql.selectable import Exists, ScalarSelect

from tests.simulation.memory.tables import overlap

if TYPE_CHECKING:
    from tests.simulation.memory.froms import Compiler

Env = dict[Any, Any]
Expression = Callable[[Env], Any]
# Environment keys that are not FROM numbers.
PARAMETERS, EXECUTION = "parameters", "execution"
AGGREGATES = frozenset({"count", "min", "max", "array_agg", "sum"})


def compile_expression(node: Any, c: Compiler) -> Expression:
    """``node`` as a function of the environment."""
    made = _BY_TYPE.get(type(node))
    if made is None:
        made = next((m for kind, m in _BY_TYPE.items() if isinstance(node, kind)), None)
    if made is None:
        raise NotImplementedError(f"{type(node).__name__}: {node}")
    return made(node, c)


def _column(node: Any, c: Compiler) -> Expression:
    if node.is_literal:
        value = _literal(node)
        return lambda env: value
    number, name = c.number(node.table), node.name
    return lambda env: env[number][name]


def _literal(node: Any) -> Any:
    """A constant of the SQL. Nothing reads the ``*`` of an EXISTS."""
    return None if node.name == "*" else ast.literal_eval(node.name)


def _parameter(node: Any, c: Compiler) -> Expression:
    index = c.parameter(node)
    return lambda env: env[PARAMETERS][index]


def _null(node: Any, c: Compiler) -> Expression:
    return lambda env: None


def _binary(node: Any, c: Compiler) -> Expression:
    left = compile_expression(node.left, c)
    if isinstance(node.right, e.CollectionAggregate) or (
        isinstance(node.right, f.Function) and node.right.name in ("any", "all")
    ):
        return _quantified(node, left, c)
    right = compile_expression(node.right, c)
    made = _OPERATORS.get(node.operator)
    if made is None and isinstance(node.operator, op.custom_op):
        made = _CUSTOM.get(node.operator.opstring)
    if made is None:
        raise NotImplementedError(f"operator {node.operator} in {node}")
    if node.operator in (op.is_, op.is_not):
        return lambda env: made(left(env), right(env))
    apply = made

    def compute(env: Env) -> Any:
        a = left(env)
        if a is None:
            return None
        b = right(env)
        return None if b is None else apply(a, b)

    return compute


def _quantified(node: Any, left: Expression, c: Compiler) -> Expression:
    (argument,) = node.right.clauses
    array = compile_expression(argument, c)
    if node.right.name == "any" and node.operator is op.eq:
        return lambda env: None if (a := left(env)) is None else a in array(env)
    if node.right.name == "all" and node.operator is op.ne:
        return lambda env: None if (a := left(env)) is None else a not in array(env)
    raise NotImplementedError(str(node))


def _clauses(node: Any, c: Compiler) -> Expression:
    parts = [compile_expression(part, c) for part in node.clauses]
    if node.operator is op.and_:
        return lambda env: _and(part(env) for part in parts)
    if node.operator is op.or_:
        return lambda env: _or(part(env) for part in parts)
    raise NotImplementedError(str(node))


def _and(values: Any) -> bool | None:
    unknown = False
    for value in values:
        if value is None:
            unknown = True
        elif not value:
            return False
    return None if unknown else True


def _or(values: Any) -> bool | None:
    unknown = False
    for value in values:
        if value is None:
            unknown = True
        elif value:
            return True
    return None if unknown else False


def _list(node: Any, c: Compiler) -> Expression:
    if all(getattr(part, "is_literal", False) for part in node.clauses):
        values = [_literal(part) for part in node.clauses]
        return lambda env: values
    parts = [compile_expression(part, c) for part in node.clauses]
    return lambda env: [part(env) for part in parts]


def _tuple(node: Any, c: Compiler) -> Expression:
    parts = [compile_expression(part, c) for part in node.clauses]
    return lambda env: tuple([part(env) for part in parts])


def _unary(node: Any, c: Compiler) -> Expression:
    inner = compile_expression(node.element, c)
    if node.operator in (op.inv, op.isfalse):
        return lambda env: None if (a := inner(env)) is None else not a
    if node.operator in (op.exists, op.istrue):
        return inner
    if node.operator is None and node.modifier in (op.desc_op, op.asc_op):
        return inner
    raise NotImplementedError(str(node))


def _inner(node: Any, c: Compiler) -> Expression:
    return compile_expression(node.element, c)


def _cast(node: Any, c: Compiler) -> Expression:
    inner = compile_expression(node.clause, c)
    if isinstance(node.type, JSONB):
        return lambda env: _from_json(inner(env))
    return inner


def _from_json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _case(node: Any, c: Compiler) -> Expression:
    whens = [(compile_expression(when, c), compile_expression(then, c)) for when, then in node.whens]
    otherwise = _null(node, c) if node.else_ is None else compile_expression(node.else_, c)

    def choose(env: Env) -> Any:
        for when, then in whens:
            if when(env):
                return then(env)
        return otherwise(env)

    return choose


def _function(node: Any, c: Compiler) -> Expression:
    name = node.name
    if name in AGGREGATES:
        return _aggregate(node, c)
    arguments = [compile_expression(a, c) for a in node.clauses]
    if name == "clock_timestamp":
        return lambda env: env[EXECUTION].now()
    if name == "coalesce":
        return lambda env: next((v for a in arguments if (v := a(env)) is not None), None)
    if name == "octet_length":
        return lambda env: None if (v := arguments[0](env)) is None else len(v)
    if name == "pg_column_size":
        return lambda env: None if (v := arguments[0](env)) is None else len(json.dumps(v))
    if name == "least":
        return lambda env: min((v for a in arguments if (v := a(env)) is not None), default=None)
    if name == "greatest":
        return lambda env: max((v for a in arguments if (v := a(env)) is not None), default=None)
    if name == "tstzmultirange":
        return lambda env: MultiRange([arguments[0](env)])
    if name in ("int8range", "tstzrange"):
        return lambda env: _range(*(a(env) for a in arguments))
    if name == "array_position":
        return lambda env: _position(arguments[0](env), arguments[1](env))
    raise NotImplementedError(str(node))


def _range(lower: Any, upper: Any, bounds: Any = "[)") -> Range[Any]:
    return Range(lower, upper, bounds=bounds)


def _position(array: list[Any], wanted: Any) -> int | None:
    return array.index(wanted) + 1 if wanted in array else None


def _extract(node: Any, c: Compiler) -> Expression:
    """The seconds of an interval."""
    inner = compile_expression(node.expr, c)
    if node.field != "epoch":
        raise NotImplementedError(str(node))
    return lambda env: None if (v := inner(env)) is None else v.total_seconds()


def _aggregate(node: Any, c: Compiler, condition: Expression | None = None) -> Expression:
    """An aggregate over the group in ``env["group"]``."""
    arguments = [compile_expression(a, c) for a in node.clauses if not getattr(a, "is_literal", False)]
    c.aggregates = True

    def values(env: Env) -> list[Any]:
        group = [one for one in env["group"] if condition is None or condition(one)]
        return [v for one in group if (v := arguments[0](one) if arguments else 1) is not None]

    if node.name == "count":
        return lambda env: len(values(env))
    if node.name == "array_agg":
        return lambda env: values(env) or None
    if node.name == "sum":
        return lambda env: sum(found) if (found := values(env)) else None
    pick = min if node.name == "min" else max
    return lambda env: pick(values(env), default=None)


def _filtered(node: Any, c: Compiler) -> Expression:
    return _aggregate(node.func, c, compile_expression(node.criterion, c))


def _subquery(node: Any, c: Compiler) -> Expression:
    plan = c.inner(_select_of(node))

    def first(env: Env) -> Any:
        rows = plan.rows(env)
        return rows[0][0] if rows else None

    return first


def _exists(node: Any, c: Compiler) -> Expression:
    plan = c.inner(_select_of(node.element))
    return lambda env: plan.any(env)


def _select_of(node: Any) -> Any:
    while isinstance(node, (ScalarSelect, e.Grouping)) or type(node).__name__ == "SelectStatementGrouping":
        node = node.element
    return node


_OPERATORS: dict[Any, Callable[[Any, Any], Any]] = {
    op.eq: operator.eq,
    op.ne: operator.ne,
    op.lt: operator.lt,
    op.le: operator.le,
    op.gt: operator.gt,
    op.ge: operator.ge,
    op.add: operator.add,
    op.sub: operator.sub,
    op.mul: operator.mul,
    op.concat_op: lambda a, b: {**a, **b},
    op.is_: lambda a, b: a is b,
    op.is_not: lambda a, b: a is not b,
    op.in_op: lambda a, b: a in b,
    op.not_in_op: lambda a, b: a not in b,
}
_CUSTOM: dict[str, Callable[[Any, Any], Any]] = {
    "->>": lambda a, b: None if a.get(b) is None else str(a[b]),
    "&&": overlap,
}
_BY_TYPE: dict[type, Callable[[Any, Any], Expression]] = {
    Column: _column,
    e.Label: _inner,
    e.BindParameter: _parameter,
    e.BinaryExpression: _binary,
    e.BooleanClauseList: _clauses,
    Exists: _exists,
    ScalarSelect: _subquery,
    e.UnaryExpression: _unary,
    e.Null: _null,
    e.True_: lambda node, c: lambda env: True,
    e.False_: lambda node, c: lambda env: False,
    e.Cast: _cast,
    e.Case: _case,
    e.Extract: _extract,
    e.FunctionFilter: _filtered,
    f.FunctionElement: _function,
    e.Grouping: _inner,
    e.Tuple: _tuple,
    e.ClauseList: _list,
    e.ColumnClause: _column,
}
