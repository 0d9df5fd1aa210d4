"""The contract as data: each topic's message types, key and writers."""

from __future__ import annotations

from dataclasses import dataclass

from retrofill_core.contract import backfills, callbacks, deadlines, pipelines, runs, states
from retrofill_core.contract.base import Message
from retrofill_core.contract.topics import CALLBACK_RUNNER, PLANNER, RUN_STARTER, SERVICES, WATCHER, Service, Topic


@dataclass(frozen=True)
class Traffic:
    """One topic: its purpose, key, writers and message types."""

    about: str
    key: str
    writers: tuple[Service, ...]
    types: tuple[type[Message], ...]
    open: str = ""  # other writers than services
    # If services write the topic too: the types that only others write.
    only_others: tuple[type[Message], ...] = ()

    @property
    def of_others(self) -> tuple[type[Message], ...]:
        """Types that no service writes. Their writers may be older or newer than the services."""
        return self.only_others if self.writers else self.types

    @property
    def of_services(self) -> tuple[type[Message], ...]:
        """Types that services write."""
        return tuple(model for model in self.types if model not in self.of_others)


TRAFFIC: dict[Topic, Traffic] = {
    Topic.PIPELINES: Traffic(
        "Pipeline definitions. The last one of a name is active; a null value removes the pipeline.",
        "the pipeline's name",
        (),
        (pipelines.PipelineApplied,),
        open="the CLI, or anyone",
    ),
    Topic.PIPELINE_EVENTS: Traffic(
        "Replies to definitions and removals of pipelines.",
        "the pipeline's name",
        (PLANNER,),
        (pipelines.PipelineAccepted, pipelines.PipelineRejected, pipelines.PipelineRemoved),
    ),
    Topic.BACKFILL_REQUESTS: Traffic(
        "Requests for backfills, and commands to active ones.",
        "the backfill's id; a request without a key gets a new id",
        (),
        (
            backfills.BackfillRequested,
            backfills.BackfillUndoRequested,
            backfills.BackfillPauseRequested,
            backfills.BackfillResumeRequested,
            backfills.BackfillPublishRequested,
            backfills.BackfillDiscardRequested,
            backfills.BackfillCancelRequested,
            backfills.RunCancelRequested,
            backfills.RunRetryRequested,
            backfills.BackfillChangeRequested,
        ),
        open="anyone",
    ),
    Topic.BACKFILL_EVENTS: Traffic(
        "Replies to requests and commands, and the progress of each backfill.",
        "the backfill's id",
        (PLANNER,),
        (
            backfills.BackfillPlanned,
            backfills.BackfillRejected,
            backfills.BackfillPaused,
            backfills.BackfillResumed,
            backfills.BackfillProgress,
            backfills.BackfillInReview,
            backfills.BackfillApproved,
            backfills.BackfillCancelling,
            backfills.BackfillCancelled,
            backfills.BackfillSucceeded,
            backfills.BackfillFailed,
            backfills.RunCancelAccepted,
            backfills.RunsRetried,
            backfills.BackfillChanged,
            backfills.BackfillCommandRejected,
        ),
    ),
    Topic.RUN_REPORTS: Traffic(
        "Reports of drivers on their attempts, for internal use.",
        "the backfill's id",
        (),
        (
            runs.AttemptHeartbeat,
            runs.RunBegan,
            runs.TaskReported,
            runs.RunStaged,
            runs.RunPublicationPutOff,
            runs.RunBaseChanged,
            runs.RunReported,
            runs.AttemptEnded,
        ),
        open="the run-starter that hosts the driver",
    ),
    Topic.RUN_EVENTS: Traffic(
        "State changes of runs and tasks.",
        "the backfill's id",
        (RUN_STARTER,),
        (
            runs.RunStarted,
            runs.RunHeldForReview,
            runs.RunPublishing,
            runs.RunSucceeded,
            runs.RunFailed,
            runs.RunAttemptLost,
            runs.RunSplit,
            runs.RunCancelled,
            runs.TaskStateChanged,
        ),
    ),
    Topic.BACKFILL_STATES: Traffic(
        "The current state of each backfill: the last record of a key.",
        "the backfill's id",
        (PLANNER,),
        (states.BackfillStateChanged,),
    ),
    Topic.INTERVAL_STATES: Traffic(
        "The current state of each data interval of each pipeline: the last record of a key.",
        "the pipeline's name, a slash and the start of the data interval in UTC, as in flights/2013-01-01T00:00:00+00:00",
        (RUN_STARTER,),
        (states.IntervalStateChanged,),
    ),
    Topic.DEADLINES: Traffic(
        "Hints to the deadline-watcher, for internal use.",
        "the deadline's id",
        (PLANNER, RUN_STARTER),
        (deadlines.DeadlineArmed, deadlines.DeadlineResolved),
    ),
    Topic.DEADLINE_MISSED: Traffic(
        "Missed deadlines, and late successes.",
        "the deadline's id; for a digest, the id of the deadline that opened it",
        (WATCHER,),
        (deadlines.DeadlineMissed, deadlines.DeadlinesMissed, deadlines.DeadlineRecovered),
    ),
    Topic.CALLBACK_REQUESTS: Traffic(
        "Hints that a callback is pending, and requests to replay one.",
        "the callback's id: that of its deadline, if it has one",
        (PLANNER, RUN_STARTER, WATCHER),
        (deadlines.CallbackRequested, deadlines.CallbackReplayRequested),
        open="the CLI, for replays",
        only_others=(deadlines.CallbackReplayRequested,),
    ),
    Topic.CALLBACK_EVENTS: Traffic(
        "Results of callbacks, and the failed runs that some are called for.",
        "the callback's id: that of its deadline, if it has one",
        (CALLBACK_RUNNER,),
        (
            callbacks.RunsFailed,
            deadlines.CallbackSucceeded,
            deadlines.CallbackFailed,
            deadlines.CallbackDropped,
            deadlines.CallbackReplayed,
            deadlines.CallbackReplayRejected,
        ),
    ),
    # The original bytes, not a message type.
    Topic.DEAD_LETTERS: Traffic(
        "Messages that could not be read or handled: the original bytes and headers, with the reason in further headers.",
        "the original key",
        tuple(SERVICES.values()),
        (),
    ),
}
