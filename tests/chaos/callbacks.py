"""The function that callbacks of the workload call: it notes its call in a file."""

from __future__ import annotations

import json
import os
import time
from typing import Any


def note(context: dict[str, Any], path: str) -> None:
    """One line a call; one write, so that lines of several processes do not mix."""
    line = json.dumps({"deadline": context["deadline_id"], "key": context["idempotency_key"], "at": time.time()})
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, line.encode() + b"\n")
    finally:
        os.close(log)
