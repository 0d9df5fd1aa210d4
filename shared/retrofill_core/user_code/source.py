"""Reads the pipelines of a file or module: in this Python, or in the one that has the packages they import."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrofill.user_code.inspecting import described
from retrofill.user_code.loading import PipelineFileError
from retrofill_core.domain.pipeline import PipelineDefinition


@dataclass(frozen=True)
class Source:
    """Pipelines as data.

    ``root``: the directory that their code is imported from, ``None`` for an installed package.
    ``imported``: the user's files that were imported with them.
    """

    definitions: Sequence[PipelineDefinition]
    root: Path | None
    imported: Sequence[str]


def read_here(source: str) -> Source:
    """Raises ``PipelineFileError``, or ``pydantic.ValidationError`` if a pipeline is invalid."""
    return _source(described(source))


def read_with(python: str, program: str, source: str) -> Source:
    """As ``read_here``, by an interpreter that needs nothing of Retrofill.

    ``program``: the path of ``inspecting.py`` among drivers' modules.
    """
    try:
        done = subprocess.run(
            [python, program, source], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
        )
    except OSError as e:
        raise PipelineFileError(f"--python {python} cannot be executed: {e.strerror}") from e
    try:
        said = json.loads(done.stdout)
    except ValueError:
        raise PipelineFileError(
            f"--python {python} could not read {source} (exit status {done.returncode}): it must be Python 3.8 or newer"
        ) from None
    if "error" in said:
        raise PipelineFileError(said["error"])
    return _source(said)


def _source(said: Mapping[str, Any]) -> Source:
    definitions = [
        PipelineDefinition.model_validate({**data, "code": {**said["place"], "attribute": attribute}})
        for attribute, data in said["pipelines"].items()
    ]
    return Source(definitions, None if said["root"] is None else Path(said["root"]), said["files"])
