"""Which of many cases belong to which tier."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """Every case, of which ``make test`` takes those that are chosen, and ``make verify`` all."""
    return [pytest.param(case, marks=[] if case in chosen else pytest.mark.long) for case in cases]
