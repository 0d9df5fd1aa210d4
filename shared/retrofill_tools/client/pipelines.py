"""Applied pipelines, and definitions as they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, select

from retrofill.errors import NotThere
from retrofill.masking import masked_conf
from retrofill.sdk.names import DEFAULT_POOL
from retrofill_core.domain.callback import Occasion, shown
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.planning import unknown_pipeline
from retrofill_core.store import pipelines as stored_pipelines
from retrofill_core.store.pipelines import StoredPipeline
from retrofill_core.store.tables import backfill, pipeline


@dataclass(frozen=True)
class StoredDefinition:
    """A definition as JSON, perhaps of another release, which this one cannot read as a whole."""

    data: Mapping[str, Any]

    @property
    def timezone(self) -> str:
        return str(self.data.get("timezone", "UTC"))

    @property
    def pool(self) -> str:
        return str(self.data.get("pool", DEFAULT_POOL))

    @property
    def unstaged(self) -> set[str]:
        """What it writes without staging it (``Pipeline(writes=…)``)."""
        return {name for each in (self.data, *self.data.get("tasks", ())) for name in each.get("writes") or ()}

    @property
    def batch_mode(self) -> str:
        return str(self.data.get("batch_mode", "each"))

    @property
    def submits(self) -> bool:
        """Whether its drivers are started by spark-submit."""
        return self.data.get("executor") == "spark-submit"

    def batch_size(self, limit: int | None = None) -> int | str:
        """``auto`` if that of each attempt is chosen."""
        if self.data.get("batch_target_seconds"):
            return "auto"
        size = int(self.data.get("batch_size", 1))
        return min(size, limit or size)


@dataclass(frozen=True)
class PipelineSummary:
    """A pipeline with the names of its tasks."""

    name: str
    schedule: str
    timezone: str
    start: str | None
    end: str | None
    max_active_runs: int
    batch_size: int | str
    batch_mode: str
    pool: str
    tasks: list[str]
    active_backfills: int
    applied_at: datetime


def applied_pipelines(conn: Connection) -> list[PipelineSummary]:
    """Applied pipelines that were not removed, by name."""
    active = (
        select(func.count())
        .where(backfill.c.pipeline_no == pipeline.c.no, backfill.c.ended_at.is_(None))
        .scalar_subquery()
    )
    found = (
        select(pipeline.c.name, pipeline.c.definition, active, pipeline.c.applied_at)
        .where(pipeline.c.removed_at.is_(None))
        .order_by(pipeline.c.name)
    )
    return [_summary(name, StoredDefinition(data), *more) for name, data, *more in conn.execute(found)]


def _summary(name: str, of: StoredDefinition, active_backfills: int, applied_at: datetime) -> PipelineSummary:
    return PipelineSummary(
        name=name,
        schedule=of.data["schedule"],
        timezone=of.data["timezone"],
        start=of.data["start"],
        end=of.data["end"],
        max_active_runs=of.data["max_active_runs"],
        batch_size=of.batch_size(),
        batch_mode=of.batch_mode,
        pool=of.pool,
        tasks=[task["name"] for task in of.data["tasks"]],
        active_backfills=active_backfills,
        applied_at=applied_at,
    )


def active_of(conn: Connection, number: int) -> int:
    """How many backfills of a pipeline are active."""
    mine = (backfill.c.pipeline_no == number) & backfill.c.ended_at.is_(None)
    return int(conn.execute(select(func.count()).where(mine)).scalar_one())


def unstaged_by_pipeline(conn: Connection) -> dict[str, set[str]]:
    """What applied pipelines write without staging it, of those that declare anything."""
    found = (
        select(pipeline.c.name, pipeline.c.definition).where(pipeline.c.removed_at.is_(None)).order_by(pipeline.c.name)
    )
    named = {name: StoredDefinition(data).unstaged for name, data in conn.execute(found)}
    return {name: names for name, names in named.items() if names}


def find_pipeline(conn: Connection, name: str) -> StoredPipeline:
    """The applied pipeline. Raises ``NotThere`` with similar names if there is none."""
    found = stored_pipelines.find(conn, [name]).get(name)
    if found is None:
        raise NotThere(unknown_pipeline(name, stored_pipelines.all_names(conn)).message)
    return found


def last_applied_at(conn: Connection, name: str) -> datetime:
    found: datetime = conn.execute(select(pipeline.c.applied_at).where(pipeline.c.name == name)).scalar_one()
    return found


def pipeline_as_json(definition: PipelineDefinition, applied_at: datetime) -> dict[str, Any]:
    """A definition with secrets in Spark settings and addresses of webhooks masked, and when it was applied."""
    data = definition.as_json()
    for called in (*data["deadlines"], *(rule for occasion in Occasion for rule in data.get(f"on_{occasion}", ()))):
        target = called["callback"]
        if target is not None and target["kind"] == "webhook" and target["url"] is not None:
            target["url"] = shown("webhook", target["url"])
    for task in data["tasks"]:
        if task["submit"] is not None:
            task["submit"]["conf"] = masked_conf(task["submit"]["conf"])
    return {**data, "spark_conf": masked_conf(data["spark_conf"]), "applied_at": applied_at}
