"""A packed environment: the Python packages of a pipeline, as one file."""

from __future__ import annotations

from pydantic import Field

from retrofill_core.domain.data import Data

SHA256 = "^[0-9a-f]{64}$"


class PackedEnvironment(Data):
    """A file in the code store, by the hash of its content."""

    sha256: str = Field(pattern=SHA256, description="Hash of the file, by which the code store has it")
    python: str = Field(pattern=r"^[0-9]+\.[0-9]+$", description="Version of Python that it was packed for, like 3.12")
