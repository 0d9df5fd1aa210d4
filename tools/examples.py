"""A complete example of each message type, for the schemas, the AsyncAPI document and the docs."""

from __future__ import annotations

from typing import Any

Example = dict[str, Any]

ASKED = "0b6f9a52-6a7c-4f0e-9a55-0d3c5b0f6a11"
CODE = "7d865e959b2466918c9863afca942d0fb89d7c9ac0c99bafc3749504ded97730"
BACKFILL: Example = {"backfill_id": "flights-2013-01", "pipeline": "flights_daily"}
RANGE: Example = {"range_start": "2013-01-01T05:00:00Z", "range_end": "2013-02-01T05:00:00Z"}
INTERVAL: Example = {"interval_start": "2013-01-03T05:00:00Z", "interval_end": "2013-01-04T05:00:00Z"}
RUN: Example = {**BACKFILL, "run_id": 4103, "attempt": 1, **INTERVAL}
REPORT: Example = {"backfill_id": "flights-2013-01", "attempt_id": 981, "sent_at": "2026-03-02T08:00:20Z"}
RUN_REPORT: Example = {**REPORT, "run_id": 4103, "attempt": 1, "publication": 0}
ERROR: Example = {
    "type": "ValueError",
    "message": "no flights on 2013-01-03",
    "traceback": 'File "flights.py", line 31, in delays\nValueError: no flights on 2013-01-03',
}
DEADLINE: Example = {
    "deadline_id": 977,
    "alert": "slow",
    "scope": "task",
    **BACKFILL,
    "run_id": 4103,
    "task": "delays",
    **INTERVAL,
    "due_at": "2026-03-02T08:10:00Z",
}
MISS: Example = {
    **DEADLINE,
    "reference": "TASK_STARTED_AT",
    "interval_seconds": 600.0,
    "detected_at": "2026-03-02T08:10:00.012000Z",
    "run_state": "running",
    "run_attempt": 1,
    "runs_done": 2,
    "runs": 31,
}
LOSS: Example = {"type": "DriverLost", "message": "the driver process was ended by signal 9"}
CALLED: Example = {"deadline_id": 977, "callback": "page_oncall", "kind": "function", "attempts": 5, "runners_lost": 1}

DEFINITION: Example = {
    "name": "flights_daily",
    "schedule": "@daily",
    "start": "2013-01-01",
    "end": "2013-12-31T00:00:00-05:00",
    "timezone": "America/New_York",
    "max_active_runs": 4,
    "executor": "pool",
    "batch_size": 10,
    "batch_target_seconds": 600.0,
    "batch_mode": "range",
    "tasks": [
        {
            "name": "delays",
            "kind": "python",
            "after": [],
            "trigger_rule": "all_success",
            "retries": 2,
            "retry_delay_seconds": 30.0,
            "sparse": True,
        },
        {
            "name": "publish",
            "kind": "submit",
            "after": ["delays"],
            "trigger_rule": "all_success",
            "retries": 0,
            "retry_delay_seconds": 1.0,
            "submit": {
                "script": "/pipelines/publish.py",
                "args": ["--from", "{interval.start:%Y-%m-%d}", "--to", "{interval.end:%Y-%m-%d}"],
                "conf": {"spark.executor.memory": "2g"},
            },
        },
    ],
    "deadlines": [
        {
            "name": "slow",
            "reference": "TASK_STARTED_AT",
            "interval_seconds": 600.0,
            "task": "delays",
            "callback": {"kind": "function", "name": "page_oncall"},
            "kwargs": {"text": "{pipeline}: {task} of {run.logical_date:%Y-%m-%d} is slow"},
            "at_most_once": False,
            "fire_if_past": False,
            "fire_on_failure": True,
            "digest_seconds": 300.0,
        },
        {
            "name": "unusual",
            "reference": "AVERAGE_RUNTIME",
            "interval_seconds": 120.0,
            "last_n": 20,
            "min_runs": 5,
            "callback": {"kind": "webhook", "url": "https://example.org/hook", "secret": "default"},
        },
        {
            "name": "quarter",
            "reference": "FIXED_DATETIME",
            "interval_seconds": -3600.0,
            "at": "2026-04-01T00:00:00Z",
            "callback": {"kind": "topic", "topic": "reporting.late"},
        },
    ],
    "code": {"file": "/pipelines/flights.py", "attribute": "flights", "sha256": CODE, "root": "/pipelines"},
    "spark_conf": {"spark.sql.session.timeZone": "UTC"},
}

BODIES: dict[str, Example] = {
    "PipelineApplied": {"pipeline": DEFINITION},
    "PipelineAccepted": {"pipeline": "flights_daily", "changed": True},
    "PipelineRejected": {
        "pipeline": "flights_daily",
        "message": "task 'publish' comes after 'delay', which is not a task of this pipeline",
    },
    "PipelineRemoved": {"pipeline": "flights_daily"},
    "BackfillRequested": {
        "id": "flights-2013-01",
        "pipeline": "flights_daily",
        "from": "2013-01-01",
        "to": "2013-01-31T00:00:00-05:00",
        "max_active_runs": 4,
        "batch_size": 10,
        "reprocess_behavior": "failed",
        "run_backwards": True,
        "on_run_failure": "pause",
        "conf": {"source": "archive", "columns": ["origin", "dest"]},
        "latest_code": True,
        "triggered_by": "ada",
        "finish_by": "2026-03-02T18:00:00Z",
        "finish_by_callback": "page_oncall",
    },
    "BackfillPauseRequested": {},
    "BackfillResumeRequested": {},
    "BackfillCancelRequested": {},
    "RunCancelRequested": {"intervals": ["2013-01-03", "2013-01-04T00:00:00-05:00"], "run_ids": [4110]},
    "BackfillPlanned": {
        **BACKFILL,
        **RANGE,
        "runs": 31,
        "skipped": {"already exists": 2},
        "max_active_runs": 4,
        "planned_at": "2026-03-02T08:00:00Z",
    },
    "BackfillRejected": {
        **BACKFILL,
        "reason": "overlap",
        "message": "backfill 'flights-winter' is active and has data intervals of the range: wait for it or cancel it",
        "conflicting_backfill_id": "flights-winter",
    },
    "BackfillPaused": {**BACKFILL, "cause": "run_failure"},
    "BackfillResumed": BACKFILL,
    "BackfillCancelling": {**BACKFILL, "cause": "user"},
    "BackfillCancelled": {**BACKFILL, "runs": {"succeeded": 12, "cancelled": 19}, "ended_at": "2026-03-02T09:00:00Z"},
    "BackfillSucceeded": {**BACKFILL, "runs": {"succeeded": 31}, "ended_at": "2026-03-02T09:00:00Z"},
    "BackfillFailed": {
        **BACKFILL,
        "runs": {"succeeded": 30, "failed": 1},
        "ended_at": "2026-03-02T09:00:00Z",
        "message": "of 31 runs: 1 failed",
    },
    "RunCancelAccepted": {
        **BACKFILL,
        "run_ids": [4103, 4104, 4110],
        "intervals": ["2013-01-03T05:00:00Z", "2013-01-04T05:00:00Z", "2013-01-10T05:00:00Z"],
    },
    "BackfillCommandRejected": {
        **BACKFILL,
        "command": "BackfillPauseRequested",
        "message": "backfill 'flights-2013-01' has ended: it succeeded",
    },
    "AttemptHeartbeat": REPORT,
    "RunBegan": RUN_REPORT,
    "TaskReported": {**RUN_REPORT, "task": "delays", "state": "retrying", "try_number": 1, "error": ERROR},
    "RunStaged": {**RUN_REPORT, "outputs": ["/data/delays/day=2013-01-03"]},
    "RunReported": {**RUN_REPORT, "state": "failed", "error": ERROR},
    "AttemptEnded": {**REPORT, "state": "lost", "begun": 4103, "error": LOSS, "stays": False},
    "RunStarted": {**RUN, "at": "2026-03-02T08:00:05Z", "attempt_id": 981, "code_sha256": CODE},
    "RunPublishing": {
        **RUN,
        "at": "2026-03-02T08:12:38Z",
        "outputs": ["/data/delays/day=2013-01-03"],
        "publication": 0,
    },
    "RunSucceeded": {**RUN, "at": "2026-03-02T08:12:40Z"},
    "RunFailed": {**RUN, "at": "2026-03-02T08:12:40Z", "error": ERROR},
    "RunSplit": {**RUN, "at": "2026-03-02T08:05:00Z", "size": 15, "error": ERROR},
    "RunAttemptLost": {**RUN, "at": "2026-03-02T08:05:00Z", "state": "queued", "error": ERROR, "counted": False},
    "RunCancelled": {**RUN, "at": "2026-03-02T08:05:00Z"},
    "TaskStateChanged": {
        **RUN,
        "at": "2026-03-02T08:00:20Z",
        "task": "delays",
        "state": "retrying",
        "try_number": 1,
        "error": ERROR,
    },
    "BackfillStateChanged": {
        **BACKFILL,
        "state": "succeeded",
        **RANGE,
        "runs": 31,
        "runs_by_state": {"succeeded": 31},
        "requested_at": "2026-03-02T08:00:00Z",
        "at": "2026-03-02T09:00:00Z",
    },
    "IntervalStateChanged": {**RUN, "state": "succeeded", "at": "2026-03-02T08:12:40Z"},
    "DeadlineArmed": {"deadline_id": 977, "due_at": "2026-03-02T08:10:00Z"},
    "DeadlineResolved": {"deadline_id": 977},
    "DeadlineMissed": {**MISS, "callback": "page_oncall"},
    "DeadlinesMissed": {
        "digest_id": 977,
        "alert": "slow",
        "pipeline": "flights_daily",
        "opened_at": "2026-03-02T08:10:00.012000Z",
        "closed_at": "2026-03-02T08:15:00.020000Z",
        "count": 1,
        "not_listed": 0,
        "part": 1,
        "parts": 1,
        "missed": [{**MISS, "recovered_at": "2026-03-02T08:12:40Z"}],
        "callback": "page_oncall",
    },
    "DeadlineRecovered": {**DEADLINE, "recovered_at": "2026-03-02T08:12:40Z", "late_seconds": 160.0},
    "CallbackRequested": {
        "deadline_id": 977,
        "callback": "page_oncall",
        "kwargs": {"text": "flights_daily: delays of 2013-01-03 is slow"},
    },
    "CallbackReplayRequested": {"deadline_id": 977},
    "CallbackSucceeded": CALLED,
    "CallbackFailed": {**CALLED, "message": "TimeoutError: no answer after 60 s", "uncertain": True},
    "CallbackReplayed": CALLED,
    "CallbackReplayRejected": {"deadline_id": 977, "message": "the callback succeeded: it is not called again"},
}


def example_of(name: str) -> Example:
    """A message of the type with every field that one message can have."""
    return {"type": name, "version": 1, "in_reply_to": ASKED, **BODIES[name]}
