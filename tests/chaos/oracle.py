"""The oracle: every promise, checked on a history. Written once, for all scenarios."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.chaos.history import History
from tests.chaos.promises import attempts, backfills, callbacks, deadlines, leftovers, limits, messages, outputs

Promise = Callable[[History], Iterator[str]]
PROMISES: dict[str, Promise] = {
    promise.__name__: promise
    for family in (backfills, limits, attempts, messages, deadlines, callbacks, leftovers, outputs)
    for promise in family.PROMISES
}
# Of one promise no more than so many breaches are told.
TOLD = 5


@dataclass(frozen=True)
class Violation:
    """One breach of a promise."""

    promise: str
    what: str


def check(history: History) -> list[Violation]:
    """All breaches."""
    return [Violation(name, what) for name, promise in PROMISES.items() for what in promise(history)]


def told(violations: list[Violation]) -> str:
    """For people: the first few of each promise."""
    counts = Counter(each.promise for each in violations)
    lines = []
    for promise, count in counts.items():
        lines.append(f"{promise}: {count}")
        lines += [f"  {each.what}" for each in violations if each.promise == promise][:TOLD]
    return "\n".join(lines)
