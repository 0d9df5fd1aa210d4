"""Assigns parametrized cases to test tiers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """All cases. ``make test`` runs only those in ``chosen``; ``make verify`` runs all."""
    return [pytest.param(case, marks=[] if case in chosen else pytest.mark.long) for case in cases]
