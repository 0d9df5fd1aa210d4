"""The tables.

Constraints and partial unique indexes are the locks; each states the invariant it holds.

Migrations create them (``store/migrations``); ``store/roles.py`` grants who may write which.
"""

from __future__ import annotations

# The modules are imported in the order of the tables in ``metadata``.
# isort: off
from retrofill_core.store.tables.backfills import REVISION, SCHEMA, Moment, metadata
from retrofill_core.store.tables.backfills import pipeline, pipeline_copy
from retrofill_core.store.tables.backfills import backfill, backfill_command, backfill_progress, backfill_request
from retrofill_core.store.tables.attempts import attempt
from retrofill_core.store.tables.attempts import host, seat, seat_wait, write_lock, write_wait
from retrofill_core.store.tables.runs import backfill_interval, run, run_cancel, task_run
from retrofill_core.store.tables.backfills import table_place
from retrofill_core.store.tables.callbacks import deadline, deadline_digest
from retrofill_core.store.tables.callbacks import callback, callback_run, receiver, webhook_off
from retrofill_core.store.tables.bus import SERVICE_TABLES, ServiceTables, installation
# isort: on

__all__ = [
    "REVISION",
    "SCHEMA",
    "SERVICE_TABLES",
    "Moment",
    "ServiceTables",
    "attempt",
    "backfill",
    "backfill_command",
    "backfill_interval",
    "backfill_progress",
    "backfill_request",
    "callback",
    "callback_run",
    "deadline",
    "deadline_digest",
    "host",
    "installation",
    "metadata",
    "pipeline",
    "pipeline_copy",
    "receiver",
    "run",
    "run_cancel",
    "seat",
    "seat_wait",
    "table_place",
    "task_run",
    "webhook_off",
    "write_lock",
    "write_wait",
]
