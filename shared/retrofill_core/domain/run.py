"""A run: one data interval of one backfill, to be executed successfully once; and how finished runs cover intervals."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from retrofill.states import machine


class RunState(StrEnum):
    """States of a run."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STAGED = "staged"
    PUBLISHING = "publishing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


S = RunState
MACHINE = machine(
    "run",
    {
        S.QUEUED: (S.STARTING, S.CANCELLED),
        S.STARTING: (S.RUNNING, S.SUCCEEDED, S.FAILED, S.QUEUED, S.CANCELLED),
        S.RUNNING: (S.SUCCEEDED, S.FAILED, S.PUBLISHING, S.STAGED, S.QUEUED, S.CANCELLED),
        S.PUBLISHING: (S.SUCCEEDED, S.FAILED, S.STAGED),
        S.STAGED: (S.PUBLISHING, S.CANCELLED),
        S.SUCCEEDED: (),
        S.FAILED: (),
        S.CANCELLED: (),
    },
)

# A live run is part of a live attempt. A staged one was accepted and waits for a publisher, or for a
# review.
LIVE = (S.STARTING, S.RUNNING, S.PUBLISHING)
# Its output was not accepted yet.
CANCELLABLE = (S.QUEUED, S.STARTING, S.RUNNING)
GOING = (*LIVE, S.STAGED)
UNFINISHED = (S.QUEUED, *GOING)


class Finished(NamedTuple):
    """A run that succeeded or failed, of the interval ``[start, end)``. Later runs have larger ids."""

    id: int
    start: datetime
    end: datetime
    state: str


class Stretch(NamedTuple):
    """A stretch of time, and the latest run that covers it."""

    start: datetime
    end: datetime
    run: Finished


class Cover(NamedTuple):
    """How runs cover an interval.

    ``finished``: each moment, by succeeded runs or by one of this very interval. ``succeeded``: each
    moment, by succeeded runs. ``some``: at least one moment, by a succeeded run. ``by_others``: that
    run is of another interval.
    """

    finished: bool
    succeeded: bool
    some: bool
    by_others: bool


NOT_COVERED = Cover(finished=False, succeeded=False, some=False, by_others=False)
# By one run alone: by whether it succeeded, and whether it is of this very interval.
_BY_ONE = {
    (True, True): Cover(finished=True, succeeded=True, some=True, by_others=False),
    (True, False): Cover(finished=True, succeeded=True, some=True, by_others=True),
    (False, True): Cover(finished=True, succeeded=False, some=False, by_others=False),
    (False, False): NOT_COVERED,
}


def latest(runs: Sequence[Finished]) -> list[Stretch]:
    """The stretches in which each run is the latest one, rising. ``runs`` rise by their start."""
    if all(one.end <= other.start for one, other in pairwise(runs)):
        return [Stretch(run.start, run.end, run) for run in runs]
    return list(_joined(_swept(runs)))


def _swept(runs: Sequence[Finished]) -> Iterator[Stretch]:
    """The same, cut at every start of a run."""
    begun: list[tuple[int, Finished]] = []  # those that may go on, the latest first
    next_one = 0
    at = None
    while next_one < len(runs) or begun:
        if at is None or not begun:
            at = runs[next_one].start
        while next_one < len(runs) and runs[next_one].start <= at:
            heappush(begun, (-runs[next_one].id, runs[next_one]))
            next_one += 1
        while begun and begun[0][1].end <= at:
            heappop(begun)
        if begun:
            top = begun[0][1]
            until = top.end if next_one == len(runs) else min(top.end, runs[next_one].start)
            yield Stretch(at, until, top)
            at = until


def _joined(stretches: Iterator[Stretch]) -> Iterator[Stretch]:
    last: Stretch | None = None
    for each in stretches:
        if last is not None and last.run is each.run and last.end == each.start:
            last = last._replace(end=each.end)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


def covers(starts: Sequence[datetime], ends: Sequence[datetime], stretches: Sequence[Stretch]) -> Iterator[Cover]:
    """How each interval is covered. Intervals rise and do not overlap, like the ``stretches``."""
    first = 0
    for start, end in zip(starts, ends, strict=True):
        while first < len(stretches) and stretches[first].end <= start:
            first += 1
        if first == len(stretches) or stretches[first].start >= end:
            yield NOT_COVERED
            continue
        begin, until, run = stretches[first]
        # Like most intervals that were processed before: there may be as many as a request may have runs.
        if begin <= start and until >= end:
            yield _BY_ONE[run.state == RunState.SUCCEEDED, run.start == start and run.end == end]
        else:
            yield _cover(start, end, stretches, first)


def _cover(start: datetime, end: datetime, stretches: Sequence[Stretch], first: int) -> Cover:
    finished = succeeded = True
    some = by_others = False
    at = start
    for n in range(first, len(stretches)):
        begin, until, run = stretches[n]
        if begin >= end:
            break
        own = run.start == start and run.end == end
        good = run.state == RunState.SUCCEEDED
        gap = begin > at
        finished = finished and not gap and (good or own)
        succeeded = succeeded and not gap and good
        some = some or good
        by_others = by_others or (good and not own)
        at = until
    if at < end:
        finished = succeeded = False
    return Cover(finished, succeeded, some, by_others)


def between(stretches: Sequence[Stretch], start: datetime, end: datetime) -> Sequence[Stretch]:
    """The stretches that overlap ``[start, end)``."""
    first = bisect_right(stretches, start, key=lambda each: each.end)
    return stretches[first : bisect_left(stretches, end, lo=first, key=lambda each: each.start)]
