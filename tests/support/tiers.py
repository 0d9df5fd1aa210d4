"""Assigns parametrized cases to test tiers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """All cases, a tuple for each that has several parameters.

    ``make test`` runs only those in ``chosen``; ``make verify`` runs all.
    """

    def param(case: Any) -> Any:
        marks = [] if case in chosen else pytest.mark.long
        return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks)

    return [param(case) for case in cases]
