"""Masks secrets: in settings and addresses by their names, in logs and errors wherever a text gives one."""

from __future__ import annotations

import re
from re import Match
from typing import Any, Mapping, Sequence

MASK = "***"
# What names of secrets have in them.
_NAMES = (
    r"(?:secret(?:[._-]?access)?(?:[._-]?key)?|passw[a-z]{0,20}|passphrase|pass(?![a-z])|pwd|token|bearer|credentials?|"
    r"jaas(?:\.config)?|sas\b|signature|authorization|(?:access|account|private|api|encryption)[._-]?key)"
)
_SECRET = re.compile(_NAMES, re.IGNORECASE)
# The login in an address like jdbc:postgresql://user:password@host.
_LOGIN = re.compile(r"://[^/@\s]*:[^/@\s]*@")
# Parameters of a Connect address that are not secret. A token is, and any header may be.
_SHOWN = ("user_id", "user_agent", "use_ssl", "session_id")
# In texts. Groups are masked, or the whole match if a pattern has none.
_BUILT_IN = (
    # The password of a URL or DSN.
    r"://[^\s/:@]*:([^\s/@]+)@",
    # password=…, db_token = "…".
    rf"(?i){_NAMES}\s*=(?!=)\s*(?:\"([^\"]+)\"|'([^']+)'|([^\s\"',;&)]+))",
    # "password": "…" in JSON and Python dicts.
    rf"(?i)[\"'][\w.-]*{_NAMES}[\"']\s*:\s*(?:\"([^\"]+)\"|'([^']+)')",
)
_patterns = tuple(re.compile(pattern) for pattern in _BUILT_IN)


def configure_masking(patterns: Sequence[str]) -> None:
    """Also mask these patterns in this process's texts. Raises ``re.error``."""
    global _patterns
    _patterns = tuple(re.compile(pattern) for pattern in (*_BUILT_IN, *patterns))


def masked(text: str) -> str:
    """The text with secrets masked."""
    for pattern in _patterns:
        text = pattern.sub(_masked_groups, text)
    return text


def masked_in(value: Any) -> Any:
    """JSON data with secrets masked in all of its texts."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {name: masked_in(each) for name, each in value.items()}
    return [masked_in(each) for each in value] if isinstance(value, (list, tuple)) else value


def hides(text: str) -> bool:
    """Whether this name of a setting denotes a secret, or this value contains one."""
    return _SECRET.search(text) is not None or _LOGIN.search(text) is not None


def masked_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Settings, masked where the name or the value suggests a secret."""
    return {name: MASK if hides(name) or hides(value) else value for name, value in conf.items()}


def masked_remote(address: str | None) -> str | None:
    """A Connect address (``sc://host:port/;name=value``) with its token and headers masked."""
    if address is None:
        return None
    base, *parameters = address.split(";")
    shown = [
        each if each.partition("=")[0] in _SHOWN else f"{each.partition('=')[0]}={MASK}" for each in parameters if each
    ]
    return ";".join([_LOGIN.sub(f"://{MASK}@", base), *shown])


def _masked_groups(found: Match[str]) -> str:
    spans = sorted({found.span(n) for n in range(1, (found.re.groups or 0) + 1) if found[n]})
    if found.re.groups == 0:
        return MASK
    text, at = "", found.start()
    for start, end in spans:
        if start >= at:
            text += found.string[at:start] + MASK
            at = end
    return text + found.string[at : found.end()]
