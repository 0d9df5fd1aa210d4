"""Which message types travel on which topic, under which key, and who publishes there: the contract's table as data."""

from __future__ import annotations

from dataclasses import dataclass

from retrofill.contract import backfills, deadlines, pipelines, runs, states
from retrofill.contract.base import Message
from retrofill.contract.topics import CALLBACK_RUNNER, PLANNER, RUN_STARTER, SERVICES, WATCHER, Service, Topic


@dataclass(frozen=True)
class Traffic:
    """One topic: what it is for, its key, which services write it (others may too where ``open``), what is on it."""

    about: str
    key: str
    writers: tuple[Service, ...]
    types: tuple[type[Message], ...]
    open: str = ""  # who writes beside the services
    # Where services write too: those of the types that only others write.
    only_others: tuple[type[Message], ...] = ()

    @property
    def of_others(self) -> tuple[type[Message], ...]:
        """The types that no service writes: whoever does may be older or newer than the services."""
        return self.only_others if self.writers else self.types

    @property
    def of_services(self) -> tuple[type[Message], ...]:
        """The types that services write."""
        return tuple(model for model in self.types if model not in self.of_others)


TRAFFIC: dict[Topic, Traffic] = {
    Topic.PIPELINES: Traffic(
        "The definitions of pipelines: the last one of a name is in force, a null value removes it.",
        "the pipeline's name",
        (),
        (pipelines.PipelineApplied,),
        open="the CLI, or anyone",
    ),
    Topic.PIPELINE_EVENTS: Traffic(
        "Answers to definitions and removals of pipelines.",
        "the pipeline's name",
        (PLANNER,),
        (pipelines.PipelineAccepted, pipelines.PipelineRejected, pipelines.PipelineRemoved),
    ),
    Topic.BACKFILL_REQUESTS: Traffic(
        "What is wished: backfills, and commands to those that are active.",
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
        "Answers to requests and commands, and what became of each backfill.",
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
        "What drivers say of their attempts; nobody else has a use for it.",
        "the backfill's id",
        (),
        (runs.RunHeartbeat, runs.TaskReported, runs.RunStaged, runs.RunReported),
        open="Spark drivers and the run-starter that hosts them",
    ),
    Topic.RUN_EVENTS: Traffic(
        "What became of each run and task.",
        "the backfill's id",
        (RUN_STARTER,),
        (
            runs.RunStarted,
            runs.RunPublishing,
            runs.RunSucceeded,
            runs.RunFailed,
            runs.RunAttemptLost,
            runs.RunCancelled,
            runs.TaskStateChanged,
        ),
    ),
    Topic.BACKFILL_STATES: Traffic(
        "How each backfill stands: the last record of a key.",
        "the backfill's id",
        (PLANNER,),
        (states.BackfillStateChanged,),
    ),
    Topic.INTERVAL_STATES: Traffic(
        "How each data interval of each pipeline stands: the last record of a key.",
        "the pipeline's name, a slash and the start of the data interval in UTC, as in flights/2013-01-01T00:00:00+00:00",
        (RUN_STARTER,),
        (states.IntervalStateChanged,),
    ),
    Topic.DEADLINES: Traffic(
        "Hints to the watcher; nobody else has a use for them.",
        "the deadline's id",
        (PLANNER, RUN_STARTER),
        (deadlines.DeadlineArmed, deadlines.DeadlineResolved),
    ),
    Topic.DEADLINE_MISSED: Traffic(
        "Deadlines that were missed, and what was done after all.",
        "the deadline's id; of what is about a digest, the id of the deadline that opened it",
        (WATCHER,),
        (deadlines.DeadlineMissed, deadlines.DeadlinesMissed, deadlines.DeadlineRecovered),
    ),
    Topic.CALLBACK_REQUESTS: Traffic(
        "Hints that a callback is to be called, and wishes to call one again.",
        "the deadline's id",
        (WATCHER,),
        (deadlines.CallbackRequested, deadlines.CallbackReplayRequested),
        open="the CLI, for replays",
        only_others=(deadlines.CallbackReplayRequested,),
    ),
    Topic.CALLBACK_EVENTS: Traffic(
        "What became of each callback.",
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
    Topic.DEAD_LETTERS: Traffic(
        "What could not be read or handled: the original bytes and headers, and why, in further headers.",
        "the original key",
        tuple(SERVICES.values()),
        (),
    ),
}
