"""Places on all partitions at once, as the id of a server-sent event."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ID = re.compile(r"[0-9a-f]{1,16}(\.[0-9a-f]{1,16}){0,20000}")


def written(places: Sequence[int]) -> str:
    """Offsets in hexadecimal, with dots between."""
    return ".".join(f"{each:x}" for each in places)


def read(text: str) -> list[int] | None:
    """The offsets; ``None`` if that is not one of ours."""
    return [int(each, 16) for each in text.split(".")] if _ID.fullmatch(text) else None


def between(first: Sequence[int], places: Sequence[int], last: Sequence[int]) -> bool:
    """Whether all are, each on its own partition."""
    return len(first) == len(places) == len(last) and all(
        low <= each <= high for low, each, high in zip(first, places, last, strict=True)
    )
