"""A table's identity, whatever the table is called."""

from __future__ import annotations

import pytest
from tests.support.lake import FORMATS, PATH, Lake
from tests.support.tiers import some

from retrofill.protocol.table_output import TableOutput


def identity(lake: Lake, table: str) -> str:
    """As it comes with what a run has staged."""
    attempt = lake.attempt()
    attempt.stage(table, "a")
    ((text,),) = attempt.outputs.values()
    output = TableOutput.of(text)
    assert output is not None
    assert str(output) == text
    attempt.staging.discard()
    return output.identity


@pytest.mark.parametrize("lake", some([*FORMATS, PATH], "iceberg"), indirect=True)
def test_a_table_is_the_same_for_all_who_stage_to_it_and_no_other(lake: Lake) -> None:
    other = lake.create(f"{lake.table.rstrip('`')}_other" + ("`" if lake.table.endswith("`") else ""))
    try:
        first = identity(lake, lake.table)
        assert first.startswith(f"{lake.format} ")
        assert identity(lake, lake.table) == first
        assert identity(lake, other) != first
        if lake.format == "delta":
            detail = lake.spark.sql(f"DESCRIBE DETAIL {lake.table}").collect()[0]
            assert identity(lake, f"delta.`{detail.location}`") == first, "by its path"
    finally:
        lake.spark.sql(f"DROP TABLE {other}").collect()


@pytest.mark.parametrize("identity", ["", "delta 1-2", "iceberg s3://bucket/a b&c=d?e", "iceberg file:/x/日"])
def test_an_output_says_it_in_its_text(identity: str) -> None:
    output = TableOutput("lake.db.t", "lake.db.s", "day", "date", "delta", identity=identity)
    assert TableOutput.of(str(output)) == output
    assert ("identity" in str(output)) == bool(identity)
