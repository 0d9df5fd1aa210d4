"""Caches SQLAlchemy expressions: the same arguments give the same object.

SQLAlchemy's expressions are immutable, so any number of statements can share one. Building them
took half of a schedule's time. The services' own code still runs in full; only SQLAlchemy's part is
cached.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import Enum
from functools import wraps
from typing import Any

import sqlalchemy
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.cache_key import HasCacheKey
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import Function, FunctionElement, _FunctionGenerator
from sqlalchemy.sql.selectable import HasCTE, Select, SelectBase, TableValuedAlias
from sqlalchemy.types import TypeEngine

_MOST = 20_000
_FUNCTIONS: list[Any] = [
    *(sqlalchemy.select, sqlalchemy.update, sqlalchemy.insert, sqlalchemy.delete, sqlalchemy.exists),
    *(sqlalchemy.bindparam, sqlalchemy.column, sqlalchemy.literal, sqlalchemy.cast, sqlalchemy.and_, sqlalchemy.or_),
    postgresql.insert,
]
_METHODS: list[tuple[type, list[str]]] = [
    (ColumnElement, ["operate", "label"]),
    (Select, ["where", "join", "join_from", "select_from", "group_by", "order_by", "limit", "with_for_update"]),
    (SelectBase, ["scalar_subquery", "lateral", "exists"]),
    (HasCTE, ["cte"]),
    (sqlalchemy.Update, ["where", "values", "returning"]),
    (sqlalchemy.Delete, ["where", "returning"]),
    (sqlalchemy.Insert, ["values", "from_select", "returning"]),
    (sqlalchemy.Exists, ["where"]),
    (Function, ["filter"]),
    (FunctionElement, ["table_valued"]),
    (TableValuedAlias, ["render_derived"]),
]
_IDENTITIES = (HasCacheKey, TypeEngine, type)
_PLAIN = (str, int, float, bytes, datetime, timedelta, Enum, type(None))
_Made = tuple[Any, Any, Any]


class _Kept:
    """A two-generation cache: entries that have not been used for a long time are dropped."""

    def __init__(self) -> None:
        self._young: dict[Any, _Made] = {}
        self._old: dict[Any, _Made] = {}

    def get(self, key: Any) -> Any:
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is None:
                return None
            self._young[key] = found
        return found[0]

    def put(self, key: Any, made: Any, args: Any, more: Any) -> None:
        # Keep the arguments alive: an ``id`` in the key is valid only as long as its object exists.
        self._young[key] = (made, args, more)
        if len(self._young) > _MOST:
            self._young, self._old = {}, self._young


_kept = _Kept()


class _Unknown(Exception):
    """The value is mutable or has no useful equality, so it cannot be part of a key."""


def _key(value: Any) -> Any:
    kind = type(value)
    how = _HOW.get(kind)
    if how is None:
        how = _HOW[kind] = _how(kind)
    return how(value)


def _how(kind: type) -> Callable[[Any], Any]:
    if issubclass(kind, _IDENTITIES):
        return id
    if issubclass(kind, _PLAIN):
        # As dictionary keys, 1, 1.0 and True are equal.
        return lambda value: (kind, value)
    return _unknown


def _unknown(value: Any) -> Any:
    raise _Unknown


_HOW: dict[type, Callable[[Any], Any]] = {
    str: lambda value: value,
    frozenset: id,
    list: lambda value: (list, tuple([_key(each) for each in value])),
    tuple: lambda value: (tuple, tuple([_key(each) for each in value])),
    dict: lambda value: (dict, tuple([(_key(name), _key(each)) for name, each in value.items()])),
}


def _interned(make: Callable[..., Any], key_of: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Callable[..., Any]:
    """Cache ``make`` by ``key_of`` of its arguments."""

    @wraps(make)
    def call(*args: Any, **more: Any) -> Any:
        try:
            key = (*key_of(args), _key(more) if more else None)
        except _Unknown:
            return make(*args, **more)
        made = _kept.get(key)
        if made is None:
            made = make(*args, **more)
            _kept.put(key, made, args, more)
        return made

    return call


def _named(name: str) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    return lambda args: (name, tuple([_key(each) for each in args]))


def _operated(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Key for ``operate``: the operator is a function with a stable identity."""
    operand, operator, *other = args
    return id(operator), id(operand), tuple([_key(each) for each in other])


def _called(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Key for ``func.name(…)``: SQLAlchemy creates a new object for each call."""
    generator, *given = args
    return "func", tuple(generator._FunctionGenerator__names), tuple([_key(each) for each in given])


@contextmanager
def interned(packages: tuple[str, ...]) -> Iterator[None]:
    """Cache the SQLAlchemy calls of all modules in ``packages``."""
    before: list[tuple[Any, str, Any]] = []

    def exchange(owner: Any, name: str, instead: Any) -> None:
        before.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, instead)

    instead = {id(each): _interned(each, _named(f"{each.__module__}.{each.__name__}")) for each in _FUNCTIONS}
    for module_name, module in sorted(sys.modules.items()):
        if module_name.split(".")[0] in packages:
            for name, value in list(vars(module).items()):
                if id(value) in instead:
                    exchange(module, name, instead[id(value)])
    for kind, names in _METHODS:
        for name in names:
            owner = next(each for each in kind.__mro__ if name in each.__dict__)
            make = owner.__dict__[name]
            exchange(
                owner, name, _interned(make, _operated if name == "operate" else _named(f"{owner.__name__}.{name}"))
            )
    exchange(_FunctionGenerator, "__call__", _interned(_FunctionGenerator.__call__, _called))
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)
