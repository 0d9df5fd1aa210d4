"""``file:`` URIs as Hadoop reads them: ``#`` and ``?`` are ordinary characters of a path, which ``urlsplit`` would end at."""

from __future__ import annotations

import re

_FILE = re.compile(r"file:(?://(?:localhost)?(?=/)|(?!//))(/.*)", re.DOTALL | re.IGNORECASE)


def path_in(uri: str) -> str | None:
    """The absolute path in a ``file:`` URI of this machine, as written; ``None`` if it is none."""
    found = _FILE.fullmatch(uri)
    return None if found is None else found.group(1)
