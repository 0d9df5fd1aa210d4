"""Shared by all user definitions: immutable data, and names."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, WithJsonSchema

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,199}")
NAME_SCHEMA = {"type": "string", "pattern": f"^{NAME.pattern}$"}


def check_name(name: str) -> str:
    """Check a name, which goes into keys, paths and Spark tags. Raises ``ValueError``."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"invalid name {name!r}: use a letter or _, then letters, digits, '_', '-' or '.', at most 200 characters"
        )
    return name


Name = Annotated[str, AfterValidator(check_name), WithJsonSchema(NAME_SCHEMA)]


class Data(BaseModel):
    """Immutable data. Unknown fields are ignored, as they may be from newer writers."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_enum_values=False)
