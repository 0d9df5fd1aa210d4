"""The contract as data: each topic's message types, key and writers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from retrofill_core.contract import backfills, deadlines, pipelines, runs
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
        (runs.BackfillStateChanged,),
    ),
    Topic.INTERVAL_STATES: Traffic(
        "The current state of each data interval of each pipeline: the last record of a key.",
        "the pipeline's name, a slash and the start of the data interval in UTC, as in flights/2013-01-01T00:00:00+00:00",
        (RUN_STARTER,),
        (runs.IntervalStateChanged,),
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
            deadlines.RunsFailed,
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


Document = dict[str, Any]

CLOUD_EVENT: Document = {
    "type": "object",
    "description": "Attributes of CloudEvents 1.0 in binary mode, and the trace context.",
    "properties": {
        "ce_specversion": {"type": "string", "const": "1.0", "description": "Version of CloudEvents"},
        "ce_id": {
            "type": "string",
            "minLength": 1,
            "description": "Unique and stable: the same in every copy of the message; replies carry it as in_reply_to",
        },
        "ce_type": {"type": "string", "description": "The message type"},
        "ce_source": {
            "type": "string",
            "format": "uri-reference",
            "minLength": 1,
            "description": "The service or client that published it",
        },
        "ce_time": {"type": "string", "format": "date-time", "description": "When it was published"},
        "ce_subject": {
            "type": "string",
            "pattern": "^attempts/[0-9]+(/runs/[0-9]+)?$",
            "description": "Of a driver's report: which attempt, and which run if it is about one",
        },
        "content-type": {"type": "string", "const": "application/json", "description": "Media type of the value"},
        "traceparent": {
            "type": "string",
            "pattern": "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$",
            "description": "W3C trace context, if there is one",
        },
    },
}
# Present in every message of a service. Messages of other clients need none.
ALWAYS = ["ce_specversion", "ce_id", "ce_type", "ce_source", "ce_time", "content-type"]
EXAMPLE: Document = {
    "ce_specversion": "1.0",
    "ce_id": "5c1d9f04-3c6b-4f5e-8a11-2f0d8f0c7e21",
    "ce_time": "2026-03-02T08:00:00.000000+00:00",
    "content-type": "application/json",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
}

_DEAD_LETTER = {
    "reason": "Why it was refused, in one line",
    "service": "Which service refused it",
    "origin_topic": "The original topic, without the prefix",
    "origin_partition": "The original partition; this and the next two are absent if the message was never on a topic",
    "origin_offset": "The original offset",
    "origin_timestamp_ms": "The original timestamp, in milliseconds since 1970",
    "dead_at": "When it was refused, ISO 8601",
    "value_sha256": "Only if the value was truncated: SHA-256 of the whole value, hexadecimal",
    "value_length": "Only if the value was truncated: its original length in bytes",
    "key_sha256": "Only if the key was truncated: SHA-256 of the whole key, hexadecimal",
    "key_length": "Only if the key was truncated: its original length in bytes",
    "headers_dropped": "Only if not all headers fit: how many were dropped",
}
DEAD_LETTER: Document = {
    "type": "object",
    "description": "The original headers, and these.",
    "properties": {f"retrofill_{name}": {"type": "string", "description": text} for name, text in _DEAD_LETTER.items()},
    "required": [f"retrofill_{name}" for name in ("reason", "service", "origin_topic", "dead_at")],
}
