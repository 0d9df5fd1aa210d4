"""A request as the command line that makes it."""

from __future__ import annotations

import json
import shlex
from datetime import date
from typing import Any

from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.domain.backfill import Publish

# Field of a request, as JSON → option of ``retrofill backfill create``.
VALUES = {
    "from": "--from",
    "to": "--to",
    "max_active_runs": "--max-active-runs",
    "batch_size": "--batch-size",
    "reprocess_behavior": "--reprocess",
    "on_run_failure": "--on-run-failure",
    "finish_by": "--finish-by",
    "id": "--id",
}
FLAGS = {"run_backwards": "--backwards", "latest_code": "--latest-code"}


def as_json(request: BackfillRequested) -> dict[str, Any]:
    """The request as it is published, without what is as by default and who makes it."""
    left_out = {"type", "version", "triggered_by"}
    return request.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=left_out)


def command_of(request: BackfillRequested) -> str:
    """``retrofill backfill create …``, as a shell takes it."""
    given = as_json(request)
    words = ["retrofill", "backfill", "create", request.pipeline]
    for name, option in VALUES.items():
        words += [option, str(given[name])] if name in given else []
    if request.intervals:
        words += ["--dates", ",".join(_date(each) for each in request.intervals)]
    words += [option for name, option in FLAGS.items() if given.get(name)]
    words += ["--review"] if request.publish == Publish.REVIEW else []
    if request.conf:
        words += ["--conf", json.dumps(given["conf"], ensure_ascii=False)]
    if request.budget is not None:
        limits = request.budget.model_dump(mode="json", exclude_none=True)
        words += ["--budget", ",".join(f"{name}={limit}" for name, limit in limits.items()) or "none"]
    return shlex.join(words)


def _date(each: date) -> str:
    return each.isoformat()
