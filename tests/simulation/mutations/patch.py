"""How a mutation changes the services' code: it replaces attributes of modules and classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import Parameter, isfunction, signature
from typing import Any

import run_starter.reports.handling
from run_starter.reports.decide import Fold

# Called with the owner (a module or class), the attribute's name and its replacement.
Patch = Callable[[Any, str, Any], None]


class Patches:
    """Replaces attributes and restores them later.

    A mutation that no longer fits the code is an error. Otherwise it would break the code in some
    other way and count as found.
    """

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

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
        setattr(owner, name, instead)

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
