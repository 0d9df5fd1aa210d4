"""A task run: one task of one attempt of one run."""

from __future__ import annotations

from retrofill.states.machine import machine
from retrofill.text_enum import StrEnum


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


S = TaskState
# The error type of a try that took longer than the task's timeout.
TASK_TIMED_OUT = "TaskTimedOut"
# Of one whose code ended its process, as os._exit does.
PROCESS_ENDED = "ProcessEnded"
MACHINE = machine(
    "task_run",
    {
        S.NONE: (S.QUEUED, S.SKIPPED, S.UPSTREAM_FAILED, S.CANCELLED),
        S.QUEUED: (S.RUNNING, S.SKIPPED, S.UPSTREAM_FAILED, S.CANCELLED),
        S.RUNNING: (S.SUCCEEDED, S.FAILED, S.RETRYING, S.CANCELLED),
        S.RETRYING: (S.RUNNING, S.CANCELLED),
        S.SUCCEEDED: (),
        S.FAILED: (),
        S.SKIPPED: (),
        S.UPSTREAM_FAILED: (),
        S.CANCELLED: (),
    },
)
