"""States of attempts and task runs, and the table of edges by which each state machine is defined."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Iterable, Mapping

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """Members are strings, and print as those."""

        __str__ = str.__str__
        __format__ = str.__format__


__all__ = ["StrEnum"]


@dataclass(frozen=True)
class Machine:
    """The states of one entity and the edges between them.

    ``edges`` maps each state to its successors; a state without successors is terminal.
    """

    entity: str
    edges: Mapping[str, frozenset[str]]

    @property
    def states(self) -> tuple[str, ...]:
        """All states, in the order of the table."""
        return tuple(self.edges)

    @property
    def terminal(self) -> frozenset[str]:
        """States without successors."""
        return frozenset(state for state, following in self.edges.items() if not following)

    def sources(self, to: str) -> frozenset[str]:
        """States with an edge to ``to``. Raises ``KeyError`` for an unknown state."""
        self.edges[to]
        return frozenset(state for state, following in self.edges.items() if to in following)

    def allows(self, from_state: str, to: str) -> bool:
        """Whether the table has the edge ``from_state`` → ``to``."""
        return to in self.edges[from_state]


def machine(entity: str, edges: Mapping[str, Iterable[str]]) -> Machine:
    """Build a machine. Raises ``ValueError`` if a successor has no row."""
    table = {state: frozenset(following) for state, following in edges.items()}
    unknown = {following for row in table.values() for following in row} - table.keys()
    if unknown:
        raise ValueError(f"{entity}: no row for {sorted(unknown)}")
    return Machine(entity, table)


class AttemptState(StrEnum):
    """States of an attempt. It is live until it ended, and then holds no slot."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


class AttemptMode(StrEnum):
    """What a driver does with the runs of an attempt.

    ``each``: one after the other; ``range``: all in one go, as one interval; ``publish``: only what
    they staged before.
    """

    EACH = "each"
    RANGE = "range"
    PUBLISH = "publish"


class AttemptOutcome(StrEnum):
    """How an attempt ended.

    ``done``: its driver reported the end; ``failed``: so it did, but a range failed as a whole;
    ``released``: stopped without being at fault.
    """

    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    RELEASED = "released"
    CANCELLED = "cancelled"


A = AttemptState
ATTEMPT_MACHINE = machine(
    "attempt",
    {
        A.STARTING: (A.RUNNING, A.ENDED),
        A.RUNNING: (A.ENDED,),
        A.ENDED: (),
    },
)
# A live attempt holds a slot of its backfill and one of its pipeline.
LIVE = (A.STARTING, A.RUNNING)
# A range of at most this many that failed is not divided further: its runs are tried one by one.
LAST_RANGE = 12
# Modes that run user code.
EXECUTES = (AttemptMode.EACH, AttemptMode.RANGE)


class TaskState(StrEnum):
    """States of a task run; ``none`` means it waits for upstream tasks."""

    NONE = "none"
    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    UPSTREAM_FAILED = "upstream_failed"
    CANCELLED = "cancelled"


T = TaskState
# The error type of a try that took longer than the task's timeout.
TASK_TIMED_OUT = "TaskTimedOut"
# Of one whose code ended its process, as os._exit does.
PROCESS_ENDED = "ProcessEnded"
TASK_RUN_MACHINE = machine(
    "task_run",
    {
        T.NONE: (T.QUEUED, T.SKIPPED, T.UPSTREAM_FAILED, T.CANCELLED),
        T.QUEUED: (T.RUNNING, T.SKIPPED, T.UPSTREAM_FAILED, T.CANCELLED),
        T.RUNNING: (T.SUCCEEDED, T.FAILED, T.RETRYING, T.CANCELLED),
        T.RETRYING: (T.RUNNING, T.CANCELLED),
        T.SUCCEEDED: (),
        T.FAILED: (),
        T.SKIPPED: (),
        T.UPSTREAM_FAILED: (),
        T.CANCELLED: (),
    },
)
