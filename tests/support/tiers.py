"""Assigns parametrized cases to test tiers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")


def some(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """All cases, a tuple for each that has several parameters.

    ``make test`` runs only those in ``chosen``; ``make verify`` runs all.
    """

    def param(case: Any) -> Any:
        marks = () if case in chosen else pytest.mark.long
        return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks)

    return [param(case) for case in cases]


def covering(cases: Iterable[Case], values: Callable[[Case], Iterable[Hashable]]) -> list[Case]:
    """A few cases that together have every value that any of them has.

    Again and again the one with the most new values, the first of several. ``values``: those of a case, on all axes.
    """
    left = {number: (case, set(values(case))) for number, case in enumerate(cases)}
    missing: set[Hashable] = set().union(*(of_case for _, of_case in left.values()))
    chosen: list[Case] = []
    while missing:
        number = max(left, key=lambda number: len(left[number][1] & missing))
        case, of_case = left.pop(number)
        chosen.append(case)
        missing -= of_case
    return chosen
