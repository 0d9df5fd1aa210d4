"""Shared by all user definitions: immutable data, and names."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, WithJsonSchema

from retrofill.sdk.names import NAME, check_name

NAME_SCHEMA = {"type": "string", "pattern": f"^{NAME.pattern}$"}


Name = Annotated[str, AfterValidator(check_name), WithJsonSchema(NAME_SCHEMA)]


class Data(BaseModel):
    """Immutable data. Unknown fields are ignored, as they may be from newer writers."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_enum_values=False, defer_build=True)
