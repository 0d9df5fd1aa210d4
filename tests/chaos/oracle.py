"""The oracle: checks every promise on a history, for all scenarios alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tests.chaos.history import History
from tests.chaos.promises import (
    attempts,
    backfills,
    callbacks,
    changes,
    deadlines,
    leftovers,
    limits,
    manners,
    messages,
    outputs,
    poison,
    refusals,
    rejections,
    stream,
    users_limits,
)

Promise = Callable[[History], Iterator[str]]
PROMISES: dict[str, Promise] = {
    promise.__name__: promise
    for family in (
        backfills,
        refusals,
        rejections,
        limits,
        attempts,
        changes,
        messages,
        stream,
        poison,
        deadlines,
        callbacks,
        leftovers,
        outputs,
        users_limits,
        manners,
    )
    for promise in family.PROMISES
}
# Promises that order events by the rows' timestamps. They do not hold after a database clock jump.
BY_CLOCK = {
    "one_active_backfill_of_an_interval",
    "skips_are_due",
    "refusals_are_due",
    "limits_hold_in_the_events",
    "events_are_in_order",
    "time_limits_hold",
}
# Most violations listed per promise.
NAMED = 5


@dataclass(frozen=True)
class Violation:
    """One violation of a promise."""

    promise: str
    what: str


def check(history: History, promises: Iterable[str] = PROMISES) -> list[Violation]:
    """All violations of ``promises``."""
    skipped = BY_CLOCK if history.clock_slack else set()
    return [Violation(name, what) for name in promises if name not in skipped for what in PROMISES[name](history)]


def fields(violations: list[Violation]) -> str:
    """A readable summary: the first few violations of each promise."""
    counts = Counter(each.promise for each in violations)
    lines = []
    for promise, count in counts.items():
        lines.append(f"{promise}: {count}")
        lines += [f"  {each.what}" for each in violations if each.promise == promise][:NAMED]
    return "\n".join(lines)
