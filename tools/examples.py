"""A complete example of each message type, for the schemas, the AsyncAPI document and the docs."""

from __future__ import annotations

from typing import Any

Example = dict[str, Any]

ASKED = "0b6f9a52-6a7c-4f0e-9a55-0d3c5b0f6a11"
CODE = "7d865e959b2466918c9863afca942d0fb89d7c9ac0c99bafc3749504ded97730"
ENVIRONMENT = "5d" * 32
BACKFILL: Example = {"backfill_id": "flights-2013-01", "pipeline": "flights_daily"}
RANGE: Example = {"range_start": "2013-01-01T05:00:00Z", "range_end": "2013-02-01T05:00:00Z"}
INTERVAL: Example = {"interval_start": "2013-01-03T05:00:00Z", "interval_end": "2013-01-04T05:00:00Z"}
RUN: Example = {**BACKFILL, "run_id": 4103, "undoes_run_id": 3071, "attempt": 1, **INTERVAL}
REPORT: Example = {"backfill_id": "flights-2013-01", "attempt_id": 981, "sent_at": "2026-03-02T08:00:20Z"}
RUN_REPORT: Example = {**REPORT, "run_id": 4103, "attempt": 1, "publication": 0}
ERROR: Example = {
    "type": "ValueError",
    "message": "no flights on 2013-01-03",
    "traceback": 'File "flights.py", line 31, in delays\nValueError: no flights on 2013-01-03',
}
SHARED_ERROR = {"type": ERROR["type"], "message": ERROR["message"], "same_as_run": 4101}
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
COST: Example = {"core_seconds": 214.6, "shuffle_bytes": 48213504, "rows_read": 842911, "rows_written": 31204}
BUDGET: Example = {"failed_runs": 3, "core_hours": 10.0, "until": "2026-03-02T18:00:00Z"}
LOSS: Example = {"type": "DriverLost", "message": "the driver process was ended by signal 9"}
CALLED: Example = {
    "deadline_id": 978,
    "callback": "page_oncall",
    "kind": "function",
    "attempts": 5,
    "runners_lost": 1,
    "occasion": "run_failed",
    "backfill_id": BACKFILL["backfill_id"],
}
PUBLISHED: Example = {"name": "lake.flights.delays", "version": "4407191023815243190", "replaced_change": False}
SHOW = f"retrofill backfill show {BACKFILL['backfill_id']}"
ZONE = "America/New_York"
ENDED: Example = {
    **BACKFILL,
    **RANGE,
    "timezone": ZONE,
    "undoes": "flights-2012-12",
    "ended_at": "2026-03-02T09:00:00Z",
    "command": SHOW,
}

DEFINITION: Example = {
    "name": "flights_daily",
    "schedule": "@daily",
    "start": "2013-01-01",
    "end": "2013-12-31T00:00:00-05:00",
    "timezone": "America/New_York",
    "max_active_runs": 4,
    "executor": "pool",
    "pool": "gpu",
    "batch_size": 10,
    "batch_target_seconds": 600.0,
    "batch_mode": "range",
    "run_timeout_seconds": 1800.0,
    "writes": ["jdbc:delays"],
    "tasks": [
        {
            "name": "delays",
            "kind": "python",
            "after": [],
            "trigger_rule": "all_success",
            "retries": 2,
            "retry_delay_seconds": 30.0,
            "timeout_seconds": 600.0,
            "sparse": True,
            "writes_nothing": True,
            "stages": False,
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
                "args": ["--to", "{interval.end:%Y-%m-%d}", "--into", "{stage_table:lake.db.delays}"],
                "conf": {"spark.executor.memory": "2g"},
                "py_files": ["/pipelines/lib.zip"],
                "jars": ["s3a://jobs/postgresql.jar"],
                "packages": ["org.postgresql:postgresql:42.7.7"],
                "files": ["/pipelines/rules-{interval.start:%Y-%m}.json#rules.json"],
                "archives": ["/pipelines/models.tar.gz#models"],
                "templates": ["/pipelines/publish.yaml"],
                "fields": ["{conf[target]}"],
                "env": {"STAGE": "production", "DB_PASSWORD": "{secret[DB_PASSWORD]}"},
                "deploy_mode": "client",
                "tables": [
                    {
                        "name": "lake.db.delays",
                        "column": "day",
                        "zone": "",
                        "with_rows": False,
                        "sparse": False,
                        "redirected": False,
                    }
                ],
            },
        },
        {
            "name": "totals",
            "kind": "sql",
            "after": ["delays"],
            "sql": {
                "file": "totals.sql",
                "text": "SELECT day, carrier, n FROM IDENTIFIER(:source) WHERE day <= :last_day",
                "parameters": {"source": "{conf[source]}"},
                "into": {"name": "lake.db.totals", "column": "day"},
            },
        },
        {
            "name": "marts",
            "kind": "command",
            "after": ["publish"],
            "trigger_rule": "all_success",
            "retries": 0,
            "retry_delay_seconds": 1.0,
            "submit": {
                "script": "dbt",
                "args": ["build", "--vars", "until: {interval.end:%Y-%m-%d}"],
                "cwd": "/pipelines/dbt",
            },
            "writes": ["marts"],
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
            "callback": {"kind": "webhook", "receiver": "team", "secret": "default"},
        },
        {
            "name": "quarter",
            "reference": "FIXED_DATETIME",
            "interval_seconds": -3600.0,
            "at": "2026-04-01T00:00:00Z",
            "callback": {"kind": "topic", "topic": "reporting.late"},
        },
    ],
    "on_run_failed": [
        {
            "callback": {
                "kind": "webhook",
                "url": "https://events.pagerduty.com/v2/enqueue",
                "secret": "default",
                "body": "pagerduty",
                "routing_key": "data",
            },
            "kwargs": {"runbook": "https://example.org/{pipeline}"},
            "at_most_once": False,
            "digest_seconds": 300.0,
        }
    ],
    "on_backfill_succeeded": [{"callback": {"kind": "topic", "topic": "reporting.done"}}],
    "on_backfill_failed": [{"callback": {"kind": "function", "name": "page_oncall"}}],
    "code": {
        "file": "/pipelines/flights.py",
        "attribute": "flights",
        "sha256": CODE,
        "root": "/pipelines",
        "environment": {"sha256": ENVIRONMENT, "python": "3.12"},
    },
    "spark_conf": {"spark.sql.session.timeZone": "UTC"},
}

BODIES: dict[str, Example] = {
    "PipelineApplied": {"pipeline": DEFINITION},
    "PipelineAccepted": {
        "pipeline": "flights_daily",
        "changed": True,
        "schedule_before": "@hourly",
        "timezone_before": "UTC",
    },
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
        "publish": "review",
        "conf": {"source": "archive", "columns": ["origin", "dest"]},
        "latest_code": True,
        "triggered_by": "ada",
        "finish_by": "2026-03-02T18:00:00Z",
        "finish_by_callback": "page_oncall",
        "budget": BUDGET,
    },
    "BackfillUndoRequested": {
        "id": "flights-2013-01-undo",
        "undoes": "flights-2013-01",
        "from": "2013-01-03",
        "to": "2013-01-07",
        "max_active_runs": 4,
        "on_run_failure": "pause",
        "publish": "review",
        "triggered_by": "ada",
    },
    "BackfillPauseRequested": {},
    "BackfillPublishRequested": {"force": True, "review": 1, "intervals": ["2013-01-05"]},
    "BackfillDiscardRequested": {},
    "BackfillResumeRequested": {"budget": {**BUDGET, "failed_runs": 6}},
    "BackfillCancelRequested": {},
    "RunCancelRequested": {"intervals": ["2013-01-03", "2013-01-04T00:00:00-05:00"], "run_ids": [4110]},
    "RunRetryRequested": {"intervals": ["2013-01-03", "2013-01-04T00:00:00-05:00"], "latest_code": True},
    "BackfillChangeRequested": {"max_active_runs": 8, "batch_size": 5, "on_run_failure": "continue"},
    "BackfillPlanned": {
        **BACKFILL,
        **RANGE,
        "runs": 31,
        "skipped": {"already exists": 2},
        "recognized": 1,
        "partly_done": 1,
        "max_active_runs": 4,
        "pipeline_max_active_runs": 8,
        "undoes": "flights-2012-12",
        "timezone": ZONE,
        "code_sha256": CODE,
        "latest_code": True,
        "planned_at": "2026-03-02T08:00:00Z",
    },
    "BackfillRejected": {
        **BACKFILL,
        "reason": "overlap",
        "message": "backfill flights-winter of flights_daily is running and covers 2013-01-01 – 2013-01-31 "
        "(America/New_York): wait for its end ('retrofill backfill watch flights-winter') or cancel it, or request other dates",
        "conflicting_backfill_id": "flights-winter",
    },
    "BackfillPaused": {
        **BACKFILL,
        "cause": "budget",
        "message": "3 runs failed, of at most 3 (failed_runs)",
    },
    "BackfillProgress": {
        **BACKFILL,
        "sequence": 12,
        "at": "2026-03-02T08:40:00Z",
        "runs": 31,
        "runs_by_state": {"queued": 15, "running": 4, "succeeded": 12},
        "runs_per_second": 0.005,
        "estimated_end": "2026-03-02T09:43:20Z",
        "earliest_end": "2026-03-02T09:25:00Z",
        "latest_end": "2026-03-02T10:13:00Z",
        "cost": COST,
    },
    "BackfillResumed": BACKFILL,
    "BackfillInReview": {
        **BACKFILL,
        "runs": {"staged": 1, "succeeded": 30},
        "review": 1,
        "changed": 1,
        "changed_intervals": ["2013-01-03T05:00:00Z"],
    },
    "BackfillApproved": {**BACKFILL, "force": True, "runs": 1},
    "BackfillCancelling": {**BACKFILL, "cause": "user"},
    "BackfillCancelled": {**ENDED, "runs": {"succeeded": 12, "cancelled": 19}},
    "BackfillSucceeded": {**ENDED, "runs": {"succeeded": 31}},
    "BackfillFailed": {
        **ENDED,
        "runs": {"succeeded": 30, "failed": 1},
        "message": "of 31 runs: 1 failed",
    },
    "RunCancelAccepted": {
        **BACKFILL,
        "run_ids": [4103, 4104, 4110],
        "intervals": ["2013-01-03T05:00:00Z", "2013-01-04T05:00:00Z", "2013-01-10T05:00:00Z"],
        "left": {"succeeded": 2, "cancelling": 1},
    },
    "RunsRetried": {
        **BACKFILL,
        "runs": 2,
        "run_ids": [4134, 4135],
        "intervals": ["2013-01-03T05:00:00Z", "2013-01-04T05:00:00Z"],
        "code_sha256": CODE,
        "latest_code": True,
        "newer_code_sha256": ENVIRONMENT,
        "undoes": "flights-2012-12",
    },
    "BackfillChanged": {
        **BACKFILL,
        "max_active_runs": 8,
        "pipeline_max_active_runs": 8,
        "batch_size": 5,
        "on_run_failure": "continue",
    },
    "BackfillCommandRejected": {
        **BACKFILL,
        "command": "BackfillPauseRequested",
        "message": "backfill 'flights-2013-01' has ended: it succeeded",
    },
    "AttemptHeartbeat": REPORT,
    "RunBegan": {
        **RUN_REPORT,
        "spark": {"id": "app-20260302080011-0042", "ui": "http://spark-connect:4040"},
    },
    "TaskReported": {**RUN_REPORT, "task": "delays", "state": "retrying", "try_number": 1, "error": ERROR},
    "RunPublicationPutOff": {
        **RUN_REPORT,
        "publication": 1,
        "error": {
            "type": "ConcurrentAppendException",
            "message": "[DELTA_CONCURRENT_APPEND] Transaction conflict detected",
        },
    },
    "RunStaged": {
        **RUN_REPORT,
        "outputs": ["/data/delays/day=2013-01-03"],
        "bases": ["version=&content=2+files+9f86d081884c7d65"],
    },
    "RunBaseChanged": {
        **RUN_REPORT,
        "publication": 1,
        "changed": ["/data/delays/day=2013-01-03"],
        "bases": ["version=&content=2+files+9f86d081884c7d65"],
    },
    "RunReported": {**RUN_REPORT, "state": "failed", "error": ERROR, "cost": COST, "published": [PUBLISHED]},
    "AttemptEnded": {
        **REPORT,
        "state": "lost",
        "begun": 4103,
        "error": LOSS,
        "stays": False,
        "shared": True,
        "cost": COST,
    },
    "RunStarted": {**RUN, "at": "2026-03-02T08:00:05Z", "attempt_id": 981, "code_sha256": CODE},
    "RunHeldForReview": {
        **RUN,
        "at": "2026-03-02T08:12:38Z",
        "outputs": ["/data/delays/day=2013-01-03"],
        "changed": ["/data/delays/day=2013-01-03"],
    },
    "RunPublishing": {
        **RUN,
        "at": "2026-03-02T08:12:38Z",
        "outputs": ["/data/delays/day=2013-01-03"],
        "publication": 0,
    },
    "RunSucceeded": {
        **RUN,
        "at": "2026-03-02T08:12:40Z",
        "cost": COST,
        "replaced_changes": ["/data/delays/day=2013-01-03"],
    },
    "RunFailed": {**RUN, "at": "2026-03-02T08:12:40Z", "error": ERROR, "cost": COST},
    "RunSplit": {**RUN, "at": "2026-03-02T08:05:00Z", "size": 15, "error": SHARED_ERROR},
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
        "undoes": "flights-2012-12",
        "runs_by_state": {"succeeded": 31},
        "requested_at": "2026-03-02T08:00:00Z",
        "at": "2026-03-02T09:00:00Z",
    },
    "IntervalStateChanged": {**RUN, "state": "undone", "at": "2026-03-02T08:12:40Z"},
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
    "CallbackReplayRequested": {"deadline_id": 977, "force": True},
    "RunsFailed": {
        "callback_id": 978,
        **BACKFILL,
        "count": 120,
        "not_listed": 119,
        "failed": [
            {
                "run_id": 4103,
                **INTERVAL,
                "attempt": 1,
                "lost_attempts": 0,
                "failed_at": "2026-03-02T08:12:40Z",
                "error": {name: ERROR[name] for name in ("type", "message")},
            }
        ],
        "runs": 365,
        "runs_done": 122,
        "closed_at": "2026-03-02T08:13:40Z",
        "callback": "page_oncall",
        "command": SHOW,
    },
    "CallbackSucceeded": CALLED,
    "CallbackFailed": {**CALLED, "message": "TimeoutError: no answer after 60 s", "uncertain": True},
    "CallbackDropped": {**CALLED, "attempts": 0, "message": "callback 981 is newer and about the same backfill"},
    "CallbackReplayed": CALLED,
    "CallbackReplayRejected": {"deadline_id": 977, "message": "the callback succeeded: it is not called again"},
}


def example_of(name: str) -> Example:
    """A message of the type with every field that one message can have."""
    return {"type": name, "version": 1, "in_reply_to": ASKED, **BODIES[name]}
