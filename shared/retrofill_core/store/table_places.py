"""Queries for the pipelines that publish to a table of Spark, and for their rows in it."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, select, text
from sqlalchemy.dialects.postgresql import insert

from retrofill_core.domain.run import RunState
from retrofill_core.store.conditions import counts
from retrofill_core.store.sql import in_state, one_of
from retrofill_core.store.tables import Moment, pipeline, run, table_place

# First key of the advisory locks of tables.
_SPACE = 0x524650
_LOCK = text("SELECT pg_advisory_xact_lock(:space, :no)")


def lock(conn: Connection, identities: Collection[str]) -> None:
    """Let one transaction at a time decide who may publish to these tables."""
    for no in sorted({zlib.crc32(each.encode()) - 2**31 for each in identities}):
        conn.execute(_LOCK, {"space": _SPACE, "no": no})


@dataclass(frozen=True, slots=True)
class Use:
    """A pipeline publishes to a table, of which the columns ``keys`` tell the interval of a row."""

    identity: str
    pipeline_no: int
    keys: str
    pipeline: str


_USES = (
    select(table_place.c.identity, table_place.c.pipeline_no, table_place.c.key_columns, pipeline.c.name)
    .join(pipeline, pipeline.c.no == table_place.c.pipeline_no)
    .where(one_of(table_place.c.identity, "identities"), pipeline.c.removed_at.is_(None))
    .order_by(table_place.c.identity, table_place.c.pipeline_no)
)


def uses(conn: Connection, identities: Collection[str]) -> list[Use]:
    """By pipelines that are not removed."""
    return [Use(*row) for row in conn.execute(_USES, {"identities": sorted(identities)})]


_PUT = insert(table_place).values(
    identity=bindparam("identity"), pipeline_no=bindparam("pipeline_no"), key_columns=bindparam("keys")
)
_PUT = _PUT.on_conflict_do_update(
    index_elements=["identity", "pipeline_no"], set_={"key_columns": _PUT.excluded.key_columns}
)


def put(conn: Connection, identity: str, pipeline_no: int, keys: str) -> None:
    """Note that a pipeline publishes to a table."""
    conn.execute(_PUT, {"identity": identity, "pipeline_no": pipeline_no, "keys": keys})


@dataclass(frozen=True, slots=True)
class Published:
    """A run whose output was accepted and counts: it is not undone, and undoes none."""

    run_id: int
    start: datetime
    end: datetime
    outputs: tuple[str, ...]


_PUBLISHED = (
    select(run.c.id, run.c.interval_start, run.c.interval_end, run.c.outputs)
    .where(
        run.c.pipeline_no == bindparam("pipeline"),
        in_state(run, RunState.PUBLISHING, RunState.STAGED, RunState.SUCCEEDED),
        run.c.outputs.is_not(None),
        counts(run),
        run.c.interval_start < bindparam("end", type_=Moment),
        run.c.interval_end > bindparam("start", type_=Moment),
    )
    .order_by(run.c.id)
)


def published(conn: Connection, pipeline_no: int, start: datetime, end: datetime) -> list[Published]:
    """A pipeline's runs of intervals that overlap this one."""
    given = {"pipeline": pipeline_no, "start": start, "end": end}
    return [Published(*row[:3], tuple(row[3]["folders"])) for row in conn.execute(_PUBLISHED, given)]
