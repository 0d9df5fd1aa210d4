"""Detects parts in a crash loop, which supervisord reports as running or starting, and why."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

# A part that lived at least this long did not fail to start.
STEADY_SECONDS = 30.0
SHORT_LIVES = 3
_TAIL_BYTES = 65_536
_MAX_REASON = 300
_BEGAN = "supervisord started with pid"
_EVENT = re.compile(r"^(\S+ \S+),\d+ \w+ (spawned|exited|stopped): '?([\w-]+)'?", re.MULTILINE)
_IS_ERROR = re.compile(r"^[\w.]*(Error|Exception)\b|\b(FATAL|ERROR|Error|Exception)\b")


def short_lives(log: str, now: datetime) -> dict[str, int]:
    """By part, how many times in a row it exited soon after its start.

    ``log`` is supervisord's. Its times have no time zone, nor may ``now``.
    """
    counts: dict[str, int] = {}
    began: dict[str, datetime] = {}
    for moment, event, name in _EVENT.findall(log.rpartition(_BEGAN)[2]):
        at = datetime.strptime(moment, "%Y-%m-%d %H:%M:%S")  # local time without a zone, like now
        if event == "spawned":
            began[name] = at
            continue
        lived = (at - began.pop(name, at)).total_seconds()
        counts[name] = counts.get(name, 0) + 1 if event == "exited" and lived < STEADY_SECONDS else 0
    for name, since in began.items():
        if (now - since).total_seconds() >= STEADY_SECONDS:
            counts[name] = 0
    return counts


def reason(log: Path) -> str:
    """The last line of a part's log that reports an error, or else the last line."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    found = next((why for line in reversed(lines) if (why := _why(line))), (lines or [""])[-1])
    return found[:_MAX_REASON]


def _why(line: str) -> str | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return line if _IS_ERROR.search(line) else None
    if not isinstance(entry, dict) or entry.get("level") not in ("error", "critical"):
        return None
    detail = entry.get("error") or str(entry.get("exception") or "").strip().rpartition("\n")[2]
    return f"{entry.get('event')}: {detail}" if detail else str(entry.get("event"))
