"""Assigns parametrized cases to test tiers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")

# What needs no servers but seconds of CPU: many interleavings, or processes. ``make check``, which a change waits for each
# time, leaves them out.
SLOW = (
    *(f"tests/simulation/test_{name}.py" for name in (
        "callbacks_of_runs", "dead_reports", "giving_way", "interleavings", "outages", "pools", "receivers_down",
        "relay_interleavings", "run_cancels", "seats", "suspects", "timeouts", "writing",
    )),
    *(f"tests/property/test_{name}.py" for name in ("fuzz_messages", "groups_model", "publication_model")),
    *(f"tests/unit/driver/test_{name}.py" for name in (
        "driver_forking", "driver_output", "driver_pool_processes", "driver_submit", "environments_that_do_not_start",
        "manners",
    )),
    *(f"tests/unit/user_code/test_{name}.py" for name in (
        "environments", "packing", "packing_from_an_index", "requirements", "source",
    )),
    *(f"tests/unit/callback_runner/test_{name}.py" for name in ("child", "in_order")),
    "tests/console/test_modules.py",
    "tests/unit/attempt_logs/test_writer.py",
    "tests/unit/bus/test_outbox_headers.py",
    "tests/unit/cli/test_streams.py",
    "tests/unit/domain/test_estimate.py",
    "tests/unit/domain/test_schedule_properties.py",
    "tests/unit/run_starter/test_driver_environments.py",
    "tests/unit/run_starter/test_processes.py",
    "tests/unit/test_forks.py",
    "tests/unit/test_images.py",
    "tests/unit/test_imports.py",
    "tests/unit/test_reaper.py",
)  # fmt: skip


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
