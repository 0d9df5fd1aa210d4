"""Which message types travel on which topic, under which key, and who publishes there: the contract's table as data."""

from __future__ import annotations

from dataclasses import dataclass

from retrofill.bus.topics import CALLBACK_RUNNER, PLANNER, RUN_STARTER, SERVICES, WATCHER, Service, Topic
from retrofill.messages import backfills, deadlines, pipelines, runs, states
from retrofill.messages.base import Message


@dataclass(frozen=True)
class Traffic:
    """One topic: what its key is, which services write it (others may too where ``open``), what is on it."""

    key: str
    writers: tuple[Service, ...]
    types: tuple[type[Message], ...]
    open: str = ""  # who writes beside the services


TRAFFIC: dict[Topic, Traffic] = {
    Topic.PIPELINES: Traffic("the pipeline's name", (), (pipelines.PipelineApplied,), open="the CLI, or anyone"),
    Topic.PIPELINE_EVENTS: Traffic(
        "the pipeline's name",
        (PLANNER,),
        (pipelines.PipelineAccepted, pipelines.PipelineRejected, pipelines.PipelineRemoved),
    ),
    Topic.BACKFILL_REQUESTS: Traffic(
        "the backfill's id; a request without a key gets a fresh id",
        (),
        (
            backfills.BackfillRequested,
            backfills.BackfillPauseRequested,
            backfills.BackfillResumeRequested,
            backfills.BackfillCancelRequested,
        ),
        open="anyone",
    ),
    Topic.BACKFILL_EVENTS: Traffic(
        "the backfill's id",
        (PLANNER,),
        (
            backfills.BackfillPlanned,
            backfills.BackfillRejected,
            backfills.BackfillPaused,
            backfills.BackfillResumed,
            backfills.BackfillCancelling,
            backfills.BackfillCancelled,
            backfills.BackfillSucceeded,
            backfills.BackfillFailed,
            backfills.BackfillCommandRejected,
        ),
    ),
    Topic.RUN_REPORTS: Traffic(
        "the backfill's id",
        (),
        (runs.RunHeartbeat, runs.TaskReported, runs.RunReported),
        open="Spark drivers and the run-starter that hosts them",
    ),
    Topic.RUN_EVENTS: Traffic(
        "the backfill's id",
        (RUN_STARTER,),
        (
            runs.RunStarted,
            runs.RunSucceeded,
            runs.RunFailed,
            runs.RunAttemptLost,
            runs.RunCancelled,
            runs.TaskStateChanged,
        ),
    ),
    Topic.BACKFILL_STATES: Traffic("the backfill's id", (PLANNER,), (states.BackfillStateChanged,)),
    Topic.INTERVAL_STATES: Traffic(
        "the pipeline's name, a slash and the start of the data interval in UTC, as in flights/2013-01-01T00:00:00+00:00",
        (RUN_STARTER,),
        (states.IntervalStateChanged,),
    ),
    Topic.DEADLINES: Traffic(
        "the deadline's id", (PLANNER, RUN_STARTER), (deadlines.DeadlineArmed, deadlines.DeadlineResolved)
    ),
    Topic.DEADLINE_MISSED: Traffic(
        "the deadline's id; of what is about a digest, the id of the deadline that opened it",
        (WATCHER,),
        (deadlines.DeadlineMissed, deadlines.DeadlinesMissed, deadlines.DeadlineRecovered),
    ),
    Topic.CALLBACK_REQUESTS: Traffic(
        "the deadline's id",
        (WATCHER,),
        (deadlines.CallbackRequested, deadlines.CallbackReplayRequested),
        open="the CLI, for replays",
    ),
    Topic.CALLBACK_EVENTS: Traffic(
        "the deadline's id",
        (CALLBACK_RUNNER,),
        (
            deadlines.CallbackSucceeded,
            deadlines.CallbackFailed,
            deadlines.CallbackReplayed,
            deadlines.CallbackReplayRejected,
        ),
    ),
    # The original bytes, whatever they are: no message type of ours.
    Topic.DEAD_LETTERS: Traffic("the original key", tuple(SERVICES.values()), ()),
}
