"""What people are shown of settings that may hold secrets: Spark's, and the address of a Spark Connect server."""

from __future__ import annotations

import re
from collections.abc import Mapping

MASK = "**********"
_SECRET = re.compile(
    r"secret|passw|token|credential|jaas|sas\b|signature|(?:access|account|private|api|encryption)[._-]?key",
    re.IGNORECASE,
)
# Of an address with a login in it, as in jdbc:postgresql://user:password@host.
_LOGIN = re.compile(r"://[^/@\s]*:[^/@\s]*@")
# What a Connect address may say that is no secret; a token is one, and so may be any header.
_SHOWN = ("user_id", "user_agent", "use_ssl", "session_id")


def masked_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings with asterisks for values that are secrets by their name, or look as if one is in them."""
    return {name: MASK if hides(name) or hides(value) else value for name, value in conf.items()}


def hides(text: str) -> bool:
    """Whether a setting with this name is a secret, or a value like this has one in it."""
    return _SECRET.search(text) is not None or _LOGIN.search(text) is not None


def masked_remote(address: str | None) -> str | None:
    """A Connect address (``sc://host:port/;name=value``) with asterisks for its token and its headers."""
    if address is None:
        return None
    base, *parameters = address.split(";")
    shown = [
        each if each.partition("=")[0] in _SHOWN else f"{each.partition('=')[0]}={MASK}" for each in parameters if each
    ]
    return ";".join([_LOGIN.sub(f"://{MASK}@", base), *shown])
