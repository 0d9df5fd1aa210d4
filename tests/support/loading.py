"""Pipelines of files, and their definitions, without a command that applies them."""

from __future__ import annotations

from pathlib import Path

from retrofill import Pipeline
from retrofill.user_code.loading import pipelines_in
from retrofill_core.domain.pipeline import CodeLocation, PipelineDefinition


def load_pipelines(source: str | Path) -> list[tuple[Pipeline, CodeLocation]]:
    """Import a file or module and return its pipelines, in order. Raises ``PipelineFileError``."""
    place, found = pipelines_in(source)
    return [(pipeline, CodeLocation(attribute=attribute, **place)) for attribute, pipeline in found.items()]


def definition_of(pipeline: Pipeline, code: CodeLocation) -> PipelineDefinition:
    """The pipeline as data. Raises ``pydantic.ValidationError``, a ``ValueError``, if it is invalid."""
    return PipelineDefinition.model_validate({**pipeline.to_data(code.file), "code": code})
