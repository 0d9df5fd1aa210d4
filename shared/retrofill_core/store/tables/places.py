"""Tables of Spark and the pipelines that publish to them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Table, Text

from retrofill_core.store.tables.base import metadata
from retrofill_core.store.tables.pipelines import pipeline

# A pipeline is there from when its first output for the table is accepted. The rows are those of its intervals.
table_place = Table(
    "table_place",
    metadata,
    # What the format says the table is, whatever its name.
    Column("identity", Text, primary_key=True),
    Column("pipeline_no", BigInteger, ForeignKey(pipeline.c.no), primary_key=True),
    # The columns that tell to which interval a row belongs.
    Column("key_columns", Text, nullable=False),
)
