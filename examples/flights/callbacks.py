"""The callback for missed deadlines, failed runs and failed backfills, ``page_oncall`` on the callback-runner's allow-list."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def page_oncall(context: dict[str, Any], **kwargs: Any) -> None:
    """Simulate a page: append a JSON line to the file that ``FLIGHTS_PAGES`` names (default ``/tmp/pages.jsonl``)."""
    line = json.dumps({"context": context, "kwargs": kwargs}, default=str, sort_keys=True)
    default = Path(tempfile.gettempdir()) / "pages.jsonl"
    with Path(os.environ.get("FLIGHTS_PAGES", default)).open("a") as pages:
        pages.write(line + "\n")
