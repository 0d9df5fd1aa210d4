"""Pipeline rows, and republished copies of pipeline messages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from retrofill_core.domain.pipeline import CodeLocation, PipelineDefinition
from retrofill_core.store.sql import one_of
from retrofill_core.store.tables import pipeline, pipeline_copy


@dataclass(frozen=True, slots=True)
class StoredPipeline:
    """A pipeline that is applied and not removed."""

    no: int
    definition: PipelineDefinition
    hash: str


def definition_hash(definition: PipelineDefinition) -> str:
    """Hash that identifies a definition."""
    return hashlib.sha256(json.dumps(definition.as_json(), sort_keys=True).encode()).hexdigest()


_FIND = select(pipeline.c.name, pipeline.c.no, pipeline.c.definition, pipeline.c.definition_hash).where(
    one_of(pipeline.c.name, "names"), pipeline.c.removed_at.is_(None)
)
_CODES = select(pipeline.c.no, pipeline.c.definition).where(one_of(pipeline.c.no, "numbers"))


def find(conn: Connection, names: Collection[str]) -> dict[str, StoredPipeline]:
    """Pipelines by name, without unknown and removed ones."""
    return {
        name: StoredPipeline(no, PipelineDefinition.model_validate(definition), hash)
        for name, no, definition, hash in conn.execute(_FIND, {"names": list(names)})
    }


_SCHEDULE = select(pipeline.c.definition).where(pipeline.c.name == bindparam("name"))


def schedule_of(conn: Connection, name: str) -> tuple[str, str] | None:
    """Schedule and time zone of a pipeline, also of a removed one."""
    found = conn.execute(_SCHEDULE, {"name": name}).scalar()
    return None if found is None else (found["schedule"], found.get("timezone", "UTC"))


def codes(conn: Connection, numbers: Collection[int]) -> dict[int, CodeLocation]:
    """Location of the code applied last, by pipeline number, including removed pipelines."""
    rows = conn.execute(_CODES, {"numbers": sorted(numbers)})
    return {no: CodeLocation.model_validate(definition["code"]) for no, definition in rows}


_LIMIT = select(pipeline.c.max_active_runs).where(pipeline.c.no == bindparam("number"))


def limit(conn: Connection, number: int) -> int:
    """``max_active_runs`` of a pipeline, including removed ones."""
    return int(conn.execute(_LIMIT, {"number": number}).scalar_one())


def all_names(conn: Connection) -> list[str]:
    """Names of all pipelines that are not removed."""
    return list(conn.execute(select(pipeline.c.name).where(pipeline.c.removed_at.is_(None))).scalars())


def put(conn: Connection, definition: PipelineDefinition) -> bool:
    """Create or replace a pipeline; whether anything changed."""
    values = {
        "definition": definition.as_json(),
        "definition_hash": definition_hash(definition),
        "max_active_runs": definition.max_active_runs,
        "applied_at": func.clock_timestamp(),
        "removed_at": None,
    }
    statement = insert(pipeline).values(name=definition.name, **values)
    written = conn.execute(
        statement.on_conflict_do_update(
            index_elements=["name"],
            set_=values,
            where=(pipeline.c.definition_hash != values["definition_hash"]) | pipeline.c.removed_at.is_not(None),
        ).returning(pipeline.c.no)
    )
    return written.first() is not None


def remove(conn: Connection, name: str) -> bool:
    """Mark a pipeline as removed; false if there was none."""
    statement = (
        update(pipeline)
        .where(pipeline.c.name == name, pipeline.c.removed_at.is_(None))
        .values(removed_at=func.clock_timestamp())
    )
    return conn.execute(statement).rowcount == 1


def expect_copy(conn: Connection, ce_id: str, value: bytes | None) -> None:
    """Record a message that was applied on a wrong partition and republished."""
    conn.execute(insert(pipeline_copy).values(ce_id=ce_id, value_hash=_value_hash(value)).on_conflict_do_nothing())


def is_copy(conn: Connection, ce_id: str, value: bytes | None) -> bool:
    """Whether this is a recorded copy. Deletes the record."""
    statement = delete(pipeline_copy).where(
        pipeline_copy.c.ce_id == ce_id, pipeline_copy.c.value_hash == _value_hash(value)
    )
    return conn.execute(statement).rowcount == 1


def _value_hash(value: bytes | None) -> str:
    return "null" if value is None else hashlib.sha256(value).hexdigest()
