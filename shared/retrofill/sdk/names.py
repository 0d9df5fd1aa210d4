"""Names, limits and choices of definitions that the SDK shares with the services' models.

Drivers import them too, in any Python that Spark supports.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Literal, get_args

from retrofill.states import StrEnum

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,199}")
# A claim writes all runs of an attempt in one transaction, and so does the end of a range. With so
# many, that takes about a second, for which the other backfills of the shard wait, and an eighth of a
# second of computing between two statements; Postgres allows a service five.
MAX_BATCH = 2_500
MAX_TARGET_SECONDS = 604_800
MIN_TIMEOUT_SECONDS = 1.0
MAX_TIMEOUT_SECONDS = 2_592_000.0
# The pool that the global settings describe.
DEFAULT_POOL = "default"
# Spark's setting for what it downloads.
PACKAGES = "spark.jars.packages"
# What a webhook sends.
Body = Literal["event", "slack", "pagerduty", "teams"]
BODIES = get_args(Body)


def check_name(name: str) -> str:
    """Check a name, which goes into keys, paths and Spark tags. Raises ``ValueError``."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"invalid name {name!r}: use a letter or _, then letters, digits, '_', '-' or '.', at most 200 characters"
        )
    return name


class TriggerRule(StrEnum):
    """When a task starts, given the end states of its upstream tasks."""

    ALL_SUCCESS = "all_success"
    ONE_SUCCESS = "one_success"
    NONE_FAILED = "none_failed"
    ALL_DONE = "all_done"
    NONE_FAILED_MIN_ONE_SUCCESS = "none_failed_min_one_success"


class Reference(StrEnum):
    """The moment a deadline counts from."""

    RUN_QUEUED_AT = "RUN_QUEUED_AT"
    RUN_STARTED_AT = "RUN_STARTED_AT"
    LOGICAL_DATE = "LOGICAL_DATE"
    FIXED_DATETIME = "FIXED_DATETIME"
    AVERAGE_RUNTIME = "AVERAGE_RUNTIME"
    TASK_STARTED_AT = "TASK_STARTED_AT"
    BACKFILL_REQUESTED_AT = "BACKFILL_REQUESTED_AT"


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
DURATION = re.compile(rf"(\d+(?:\.\d+)?)([{''.join(UNITS)}])")


def seconds_of(value: str | timedelta) -> float:
    """``90s``, ``5m``, ``1.5h`` or ``2d``, or a timedelta, as seconds. Raises ``ValueError``."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    found = DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"invalid duration {value!r}: write it like 90s, 5m, 1.5h or 2d")
    return float(found[1]) * UNITS[found[2]]


def written(seconds: float) -> str:
    """Seconds in the largest unit that divides them, as users write them: ``10m`` or ``2.5s``."""
    unit = next((unit for unit in reversed(UNITS) if seconds % UNITS[unit] == 0), "s")
    return f"{seconds / UNITS[unit]:g}{unit}"


def timed_out(what: str, seconds: float, times: int, limit: str) -> str:
    """That ``what`` took longer than its ``limit``, which a range has once for each of its runs."""
    each = f" ({written(seconds)} for each of {times} runs)" if times > 1 else ""
    return f"{what} timed out after {written(seconds * times)}{each}: raise {limit}, or find out what takes so long"
