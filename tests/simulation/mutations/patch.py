"""Mutations change the services' code by replacing attributes of modules and classes."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from inspect import Parameter, getsource, isfunction, signature
from typing import Any

import run_starter.reports.handling
from run_starter.reports.decide import Fold

# Called with the owner (a module or class), the attribute's name and its replacement.
Patch = Callable[[Any, str, Any], None]


class Patches:
    """Replaces attributes and restores them later.

    A mutation that no longer fits the code is an error. Otherwise it would break the code in some
    other way and count as found, or break nothing. ``calls`` counts the calls of each replacement;
    a value that is no function must be read by a function of its module.
    """

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []
        self.calls: Counter[str] = Counter()

    def __call__(self, owner: Any, name: str, instead: Any) -> None:
        """Replace ``name``, which ``owner`` itself must define.

        A function's replacement must accept the same calls.
        """
        if name not in vars(owner):
            raise AttributeError(f"{owner.__name__} has no {name}: the mutation does not fit the code")
        before = vars(owner)[name]
        if isfunction(before) and isfunction(instead):
            _require_the_same_call(before, instead)
        self._before.append((owner, name, before))
        setattr(owner, name, self._counted(owner, name, instead, before))

    def count(self, owner: Any, name: str) -> None:
        """Count the calls of a function and leave it what it is."""
        if f"{owner.__name__}.{name}" not in self.calls:
            self(owner, name, vars(owner)[name])

    def _counted(self, owner: Any, name: str, instead: Any, before: Any) -> Any:
        """The replacement, which counts its calls where it is called at all."""
        full = f"{owner.__name__}.{name}"
        if isinstance(before, property):
            answer = instead.fget if isinstance(instead, property) else lambda _: instead
            return property(self._counted(owner, name, answer, before.fget))
        if not callable(before):
            if not _is_read(owner, name):
                raise AttributeError(f"no function of {owner.__name__} reads {name}: the mutation replaces nothing")
            return instead
        self.calls[full] = 0

        @wraps(instead)
        def counted(*args: Any, **named: Any) -> Any:
            self.calls[full] += 1
            return instead(*args, **named)

        return counted

    def undo(self) -> None:
        """Restore all replaced attributes."""
        while self._before:
            setattr(*self._before.pop())


def decided_with(
    patch: Patch, *, run: Mapping[str, Any] | None = None, attempt: Mapping[str, Any] | None = None
) -> None:
    """Let the run-starter decide as if all runs and attempts had these columns."""

    def fold(attempts: Any, runs: Any, *more: Any, **named: Any) -> Fold:
        attempts = {id: replace(each, **attempt or {}) for id, each in attempts.items()}
        return Fold(attempts, {id: replace(each, **run or {}) for id, each in runs.items()}, *more, **named)

    patch(run_starter.reports.handling, "Fold", fold)


def _require_the_same_call(before: Any, instead: Any) -> None:
    """Check that ``instead`` accepts both the minimal and the full argument list of ``before``."""
    given = signature(before).parameters.values()
    for wanted in ([p for p in given if p.default is Parameter.empty], list(given)):
        plain = [p.name for p in wanted if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
        named = {p.name: p.name for p in wanted if p.kind is Parameter.KEYWORD_ONLY}
        signature(instead).bind(*plain, **named)


def _is_read(module: Any, name: str) -> bool:
    """Whether a function of the module reads the global ``name`` when it is called."""
    functions = [node for node in ast.walk(ast.parse(getsource(module))) if isinstance(node, ast.FunctionDef)]
    names = [node for each in functions for node in ast.walk(each) if isinstance(node, ast.Name)]
    return any(node.id == name and isinstance(node.ctx, ast.Load) for node in names)
