"""Masks passwords and tokens in a driver's reports and logs."""

from __future__ import annotations

import re
from re import Match
from typing import Any, Sequence

MASK = "***"
_NAMES = r"(?:password|passwd|pwd|secret(?:[_-]?access)?(?:[_-]?key)?|token|api[_-]?key|access[_-]?key)"
# Groups are masked, or the whole match if a pattern has none.
BUILT_IN = (
    # The password of a URL or DSN.
    r"://[^\s/:@]*:([^\s/@]+)@",
    # password=…, db_token = "…".
    rf"(?i){_NAMES}\s*=(?!=)\s*(?:\"([^\"]+)\"|'([^']+)'|([^\s\"',;&)]+))",
    # "password": "…" in JSON and Python dicts.
    rf"(?i)[\"'][\w.-]*{_NAMES}[\"']\s*:\s*(?:\"([^\"]+)\"|'([^']+)')",
)
_patterns = tuple(re.compile(pattern) for pattern in BUILT_IN)


def configure_redaction(patterns: Sequence[str]) -> None:
    """Also mask these patterns in this process. Raises ``re.error``."""
    global _patterns
    _patterns = tuple(re.compile(pattern) for pattern in (*BUILT_IN, *patterns))


def redacted(text: str) -> str:
    """The text with secrets masked."""
    for pattern in _patterns:
        text = pattern.sub(_masked, text)
    return text


def redacted_in(value: Any) -> Any:
    """JSON data with secrets masked in all of its texts."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {name: redacted_in(each) for name, each in value.items()}
    return [redacted_in(each) for each in value] if isinstance(value, (list, tuple)) else value


def _masked(found: Match[str]) -> str:
    spans = sorted({found.span(n) for n in range(1, (found.re.groups or 0) + 1) if found[n]})
    if found.re.groups == 0:
        return MASK
    text, at = "", found.start()
    for start, end in spans:
        if start >= at:
            text += found.string[at:start] + MASK
            at = end
    return text + found.string[at : found.end()]
