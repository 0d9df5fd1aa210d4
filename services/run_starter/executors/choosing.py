"""Matches attempts with warm drivers, and decides which drivers are replaced and with which environment one starts.

A driver serves attempts of one environment: modules of another cannot replace those that it has
imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from retrofill_core.user_code.environments import Packed
from run_starter.executors import LaunchRequest


class Waiting(NamedTuple):
    """A waiting attempt and its environment."""

    launch: LaunchRequest
    packed: Packed | None


class Warm(Protocol):
    """A driver process. ``busy``: it has an attempt; ``retiring``: it gets no other."""

    packed: Packed | None
    ready: bool
    retiring: bool

    @property
    def busy(self) -> bool: ...


W = TypeVar("W", bound=Warm)


def matches(workers: Sequence[W], wanted: Sequence[Waiting]) -> Iterator[tuple[W, LaunchRequest]]:
    """Idle drivers for waiting attempts, in the order of the attempts."""
    idle = _idle(workers)
    for each in wanted:
        found = next((worker for worker in idle if each.launch.only_files or worker.packed == each.packed), None)
        if found is not None:
            idle.remove(found)
            yield found, each.launch


def to_replace(workers: Sequence[W], wanted: Sequence[Waiting], slots: int) -> list[W]:
    """Idle drivers to replace, for attempts that no driver is there or starting for."""
    missing = slots - len(workers)
    unmet = len(_unmet(workers, wanted)) - missing
    return _idle(workers)[: max(0, unmet)]


def to_start(workers: Sequence[Warm], wanted: Sequence[Waiting], otherwise: Packed | None) -> list[Packed | None]:
    """The environments of which the next driver may be, the preferred one first."""
    return _unmet(workers, wanted) or [otherwise]


def _unmet(workers: Sequence[Warm], wanted: Sequence[Waiting]) -> list[Packed | None]:
    """The environments of waiting attempts, less those of drivers that are starting."""
    coming = [worker.packed for worker in workers if not worker.ready]
    found = []
    for each in wanted:
        if each.packed in coming:
            coming.remove(each.packed)
        else:
            found.append(each.packed)
    return found


def _idle(workers: Sequence[W]) -> list[W]:
    return [worker for worker in workers if worker.ready and not worker.busy and not worker.retiring]
