"""Bounds of logical date ranges: a bare date, or a datetime with an offset."""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Annotated, Any

from pydantic import BeforeValidator

DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def parse_bound(value: Any) -> Any:
    """Parse a date, or a datetime with an offset. Raises ``ValueError``."""
    if not isinstance(value, str):
        if isinstance(value, date):
            return value
        raise ValueError("not a string: use a date like 2024-01-31 or a datetime with an offset")
    if DATE.fullmatch(value):
        return date.fromisoformat(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"{value[:40]!r} is neither a date like 2024-01-31 nor a datetime with an offset") from None
    if moment.tzinfo is None:
        raise ValueError(f"{value!r} has no UTC offset: write it like 2024-01-31T00:00:00+00:00, or as a bare date")
    return moment


Bound = Annotated[datetime | date, BeforeValidator(parse_bound)]
