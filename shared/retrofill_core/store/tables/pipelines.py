"""Tables of pipelines."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Identity, Integer, Table, Text, func
from sqlalchemy.dialects.postgresql import JSONB

from retrofill_core.store.tables.base import Moment, lock_only, metadata

pipeline = Table(
    "pipeline",
    metadata,
    Column("name", Text, primary_key=True),
    # A number, so that an exclusion constraint can use it as a range without btree_gist.
    Column("no", BigInteger, Identity(always=True), nullable=False, unique=True),
    Column("definition", JSONB, nullable=False),
    Column("definition_hash", Text, nullable=False),
    Column("max_active_runs", Integer, nullable=False),
    Column("applied_at", Moment, nullable=False, server_default=func.clock_timestamp()),
    Column("removed_at", Moment),
    lock_only(),
)

# Messages on pipelines that were applied on a wrong partition and republished: the copy is not
# applied.
pipeline_copy = Table(
    "pipeline_copy",
    metadata,
    Column("ce_id", Text, primary_key=True),
    Column("value_hash", Text, nullable=False),
    Column("applied_at", Moment, nullable=False, server_default=func.clock_timestamp()),
)
