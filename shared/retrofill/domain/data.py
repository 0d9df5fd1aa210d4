"""What all definitions of users share: immutable data, plain names."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, WithJsonSchema

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,199}")
NAME_SCHEMA = {"type": "string", "pattern": f"^{NAME.pattern}$"}


def check_name(name: str) -> str:
    """Names go into keys, paths and Spark tags, so they are plain. Raises ``ValueError``."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name: a letter or _ first, then letters, digits, '_', '-' or '.', 200 characters at most"
        )
    return name


Name = Annotated[str, AfterValidator(check_name), WithJsonSchema(NAME_SCHEMA)]


class Data(BaseModel):
    """Immutable data; unknown fields are ignored, so that newer writers can be read."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_enum_values=False)
