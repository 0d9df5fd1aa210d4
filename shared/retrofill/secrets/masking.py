"""Masks secrets in Spark settings and Spark Connect addresses before they are shown."""

from __future__ import annotations

import re
from typing import Mapping

MASK = "**********"
_SECRET = re.compile(
    r"secret|pass(?:w|phrase|(?![a-z]))|pwd|token|bearer|credential|jaas|sas\b|signature|authorization|"
    r"(?:access|account|private|api|encryption)[._-]?key",
    re.IGNORECASE,
)
# The login in an address like jdbc:postgresql://user:password@host.
_LOGIN = re.compile(r"://[^/@\s]*:[^/@\s]*@")
# Parameters of a Connect address that are not secret. A token is, and any header may be.
_SHOWN = ("user_id", "user_agent", "use_ssl", "session_id")


def masked_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Spark settings, with asterisks for values whose name or content suggests a secret."""
    return {name: MASK if hides(name) or hides(value) else value for name, value in conf.items()}


def hides(text: str) -> bool:
    """Whether this name of a setting denotes a secret, or this value contains one."""
    return _SECRET.search(text) is not None or _LOGIN.search(text) is not None


def masked_remote(address: str | None) -> str | None:
    """A Connect address (``sc://host:port/;name=value``) with its token and headers masked."""
    if address is None:
        return None
    base, *parameters = address.split(";")
    shown = [
        each if each.partition("=")[0] in _SHOWN else f"{each.partition('=')[0]}={MASK}" for each in parameters if each
    ]
    return ";".join([_LOGIN.sub(f"://{MASK}@", base), *shown])
