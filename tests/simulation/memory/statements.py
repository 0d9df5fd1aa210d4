"""Compiles SQLAlchemy statements to plans that run on the in-memory tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.sql.dml import Delete, Insert, Update
from sqlalchemy.sql.selectable import CompoundSelect, Select

from tests.simulation.memory.changing import DeletePlan, InsertPlan, UpdatePlan
from tests.simulation.memory.expressions import EXECUTION, PARAMETERS, Env
from tests.simulation.memory.froms import Compiler, Execution
from tests.simulation.memory.selecting import SelectPlan, UnionPlan

Plan = SelectPlan | UnionPlan | InsertPlan | UpdatePlan | DeletePlan
_PLANS: list[tuple[type, Any]] = [
    (Select, SelectPlan),
    (CompoundSelect, UnionPlan),
    (Insert, InsertPlan),
    (Update, UpdatePlan),
    (Delete, DeletePlan),
]
_cache: dict[Any, Plan] = {}


def plan_of(statement: Any, given: Mapping[str, Any]) -> tuple[Plan, list[Any]]:
    """The statement's plan and its parameters. Plans are cached across parameter values.

    ``given`` are the values of named parameters. Raises ``TypeError`` if one is missing.
    """
    key = statement._generate_cache_key()
    if key is None:
        raise NotImplementedError(f"{statement}: has no cache key")
    plan = _cache.get(key.key)
    if plan is None:
        compiler = Compiler({parameter.key: n for n, parameter in enumerate(key.bindparams)})
        made = next((make for kind, make in _PLANS if isinstance(statement, kind)), None)
        if made is None:
            raise NotImplementedError(type(statement).__name__)
        plan = _cache[key.key] = made(statement, compiler)
    return plan, [_value(parameter, given) for parameter in key.bindparams]


def _value(parameter: Any, given: Mapping[str, Any]) -> Any:
    if parameter.key in given:
        return given[parameter.key]
    if parameter.required:
        raise TypeError(f"no value for the parameter {parameter.key}")
    return parameter.effective_value


def environment(execution: Execution, parameters: list[Any]) -> Env:
    """The environment in which a plan runs."""
    return {EXECUTION: execution, PARAMETERS: parameters}
