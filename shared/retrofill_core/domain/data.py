"""Shared by all user definitions: immutable data, names, and packed environments."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from retrofill.sdk.names import NAME, check_name

NAME_SCHEMA = {"type": "string", "pattern": f"^{NAME.pattern}$"}


Name = Annotated[str, AfterValidator(check_name), WithJsonSchema(NAME_SCHEMA)]


class Data(BaseModel):
    """Immutable data. Unknown fields are ignored, as they may be from newer writers."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_enum_values=False, defer_build=True)


SHA256 = "^[0-9a-f]{64}$"


class PackedEnvironment(Data):
    """A file in the code store, by the hash of its content."""

    sha256: str = Field(pattern=SHA256, description="Hash of the file, by which the code store has it")
    python: str = Field(pattern=r"^[0-9]+\.[0-9]+$", description="Version of Python that it was packed for, like 3.12")
