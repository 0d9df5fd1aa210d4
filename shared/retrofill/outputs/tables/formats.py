"""The formats of tables that can be published into."""

from __future__ import annotations

from typing import Any, Mapping

from retrofill.outputs.tables.delta import Delta, DeltaTarget
from retrofill.outputs.tables.hive import Hive, HiveTarget
from retrofill.outputs.tables.hive_partitions import describe
from retrofill.outputs.tables.iceberg import Iceberg, IcebergTarget
from retrofill.outputs.tables.protocol import Format, Target

# Of tables whose partitions are in a metastore: Hive's own, and Spark's data sources.
HIVE = ("hive", "parquet", "orc", "avro", "csv", "json", "text")
# By the name that Spark has for the format.
FORMATS: Mapping[str, type[Format]] = {"iceberg": Iceberg, "delta": Delta, **dict.fromkeys(HIVE, Hive)}
TARGETS: Mapping[str, type[Target]] = {
    "iceberg": IcebergTarget,
    "delta": DeltaTarget,
    **dict.fromkeys(HIVE, HiveTarget),
}


def provider_of(session: Any, table: str) -> str:
    """The format of a table, in lower case."""
    return describe(session, table).provider
