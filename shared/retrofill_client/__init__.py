"""The client for Python programs: ``Client().backfills.create("flights", "2013-01-01", "2013-01-31").wait()``.

By the console's HTTP API (``Client(url=…, token=…)``) it needs nothing but the standard library; ``Client()`` uses Kafka and
Postgres with the settings of the installation. Methods, results and errors are the same for both.
"""

from retrofill_client.client import Backfills, Client, Pipelines, Runs
from retrofill_client.documents import Backfill, Change, Failure, Pipeline, Plan, Run
from retrofill_client.errors import (
    BackfillFailed,
    BadRequest,
    NoAnswer,
    NotAllowed,
    NotFound,
    Refused,
    RetrofillError,
    Unreachable,
    WaitTimeout,
)

__all__ = [
    "Backfill",
    "BackfillFailed",
    "Backfills",
    "BadRequest",
    "Change",
    "Client",
    "Failure",
    "NoAnswer",
    "NotAllowed",
    "NotFound",
    "Pipeline",
    "Pipelines",
    "Plan",
    "Refused",
    "RetrofillError",
    "Run",
    "Runs",
    "Unreachable",
    "WaitTimeout",
]
