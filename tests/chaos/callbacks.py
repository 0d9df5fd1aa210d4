"""The workload's callback function: it records each call in a file."""

from __future__ import annotations

import json
import os
import time
from typing import Any


def note(context: dict[str, Any], path: str) -> None:
    """Append one line per call, in a single write so that processes do not interleave."""
    id = context["deadline_id"] if "deadline_id" in context else context["callback_id"]
    line = json.dumps({"deadline": id, "key": context["idempotency_key"], "at": time.time()})
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, line.encode() + b"\n")
    finally:
        os.close(log)
