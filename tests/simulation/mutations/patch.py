"""How a mutation changes the services' code: it exchanges what a name stands for."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, isfunction, signature
from typing import Any

# Owner (a module or class), name, and what it is instead.
Patch = Callable[[Any, str, Any], None]


class Patches:
    """What was exchanged, to be undone.

    A mutation that does not fit the code any more would break it in its own way, and count as found: it is an error.
    """

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def __call__(self, owner: Any, name: str, instead: Any) -> None:
        """Exchange ``name``, which ``owner`` itself has to have; functions for functions that can be called alike."""
        if name not in vars(owner):
            raise AttributeError(f"{owner.__name__} has no {name}: the mutation does not fit the code")
        before = vars(owner)[name]
        if isfunction(before) and isfunction(instead):
            _require_the_same_call(before, instead)
        self._before.append((owner, name, before))
        setattr(owner, name, instead)

    def undo(self) -> None:
        """As before."""
        while self._before:
            setattr(*self._before.pop())


def _require_the_same_call(before: Any, instead: Any) -> None:
    """Called with all that ``before`` needs, and with all that it takes."""
    given = signature(before).parameters.values()
    for wanted in ([p for p in given if p.default is Parameter.empty], list(given)):
        plain = [p.name for p in wanted if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
        named = {p.name: p.name for p in wanted if p.kind is Parameter.KEYWORD_ONLY}
        signature(instead).bind(*plain, **named)
