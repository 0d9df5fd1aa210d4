"""Everything that has to be one message fits into the smallest limit that can be set."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from callback_runner.record import ERROR_CHARACTERS, LISTED
from retrofill.outputs.staging import MAX_OUTPUTS, MAX_OUTPUTS_BYTES
from retrofill_core.contract.base import Message
from retrofill_core.contract.deadlines import FailedRun, RunsFailed
from retrofill_core.contract.runs import ErrorInfo, PublishedOutput, RunReported, RunStaged
from retrofill_core.settings import Settings

NOW = datetime(2026, 1, 1, 1, 1, 1, 123456, tzinfo=UTC)
LARGE = 2**60
# Six bytes in JSON, as ``\\u0001``.
WIDE = "\x01"
# With the quotes and the comma.
OUTPUT = "/" * (MAX_OUTPUTS_BYTES // MAX_OUTPUTS - 3)
RUN: dict[str, Any] = {
    "backfill_id": "b" * 200,
    "pipeline": "p" * 200,
    "attempt_id": LARGE,
    "run_id": LARGE,
    "attempt": LARGE,
    "interval_start": NOW,
    "interval_end": NOW,
    "sent_at": NOW,
}
FAILED = FailedRun(
    run_id=LARGE,
    interval_start=NOW,
    interval_end=NOW,
    attempt=LARGE,
    lost_attempts=LARGE,
    failed_at=NOW,
    error=ErrorInfo(type=WIDE * 200, message=WIDE * ERROR_CHARACTERS),
)


@pytest.mark.parametrize(
    "message",
    [
        RunStaged(**RUN, outputs=(OUTPUT,) * MAX_OUTPUTS),
        RunReported(
            **RUN,
            state="failed",
            error=ErrorInfo(type=WIDE * 200, message=WIDE * 4000, traceback=WIDE * 8000),
            published=(PublishedOutput(name=OUTPUT, version="9" * 100),) * MAX_OUTPUTS,
        ),
        RunsFailed(
            callback_id=LARGE,
            pipeline="p" * 200,
            backfill_id="b" * 200,
            count=LARGE,
            not_listed=LARGE,
            failed=[FAILED] * LISTED,
            runs=LARGE,
            runs_done=LARGE,
            closed_at=NOW,
            callback="c" * 2000,
            command="c" * 1000,
        ),
    ],
    ids=lambda message: message.type,
)
def test_the_largest_message_fits_into_the_smallest_limit(message: Message) -> None:
    (smallest,) = (each.ge for each in Settings.model_fields["max_message_bytes"].metadata)
    assert 150_000 < len(message.encode()) < smallest
