"""One pipeline as data."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from retrofill.errors import NotThere
from retrofill.masking import masked_conf
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.planning import unknown_pipeline
from retrofill_core.store import pipelines as stored_pipelines
from retrofill_core.store.pipelines import StoredPipeline


def find_pipeline(conn: Connection, name: str) -> StoredPipeline:
    """The applied pipeline. Raises ``NotThere`` with similar names if there is none."""
    found = stored_pipelines.find(conn, [name]).get(name)
    if found is None:
        raise NotThere(unknown_pipeline(name, stored_pipelines.all_names(conn)).message)
    return found


def pipeline_as_json(definition: PipelineDefinition, applied_at: datetime) -> dict[str, Any]:
    """A definition with secrets in Spark settings masked, and when it was applied."""
    data = definition.as_json()
    for task in data["tasks"]:
        if task["submit"] is not None:
            task["submit"]["conf"] = masked_conf(task["submit"]["conf"])
    return {**data, "spark_conf": masked_conf(data["spark_conf"]), "applied_at": applied_at}
