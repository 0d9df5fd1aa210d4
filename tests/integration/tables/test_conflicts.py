"""Accepted rows are published beside any number of other commits, or left to a later publisher: they never fail for that."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import date, timedelta

import pytest
from tests.support.lake import FORMATS, Lake
from tests.support.tiers import some

from retrofill.outputs.tables import publication, turns
from retrofill.outputs.tables.turns import NotNow

LAYOUTS = {"unpartitioned": "", "clustered": "CLUSTER BY (day)", "by day": "PARTITIONED BY (day)"}
EACH, EACH_OF_MANY = 2, 10


# Iceberg has no clustered tables. Without turns, as on several machines.
CASES = [
    (format, layout, turns, publishers)
    for format in FORMATS
    for layout in LAYOUTS
    for turns in (True, False)
    for publishers in (2, 4, 8)
    if (format, layout) != ("iceberg", "clustered")
]


def date_of(day: int) -> date:
    return date(2013, 1, 1) + timedelta(days=day - 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("lake", "layout", "turns", "publishers"),
    some(CASES, CASES[0]),
    indirect=["lake"],
)
def test_several_publishers_of_one_table_publish_everything(
    lake: Lake, layout: str, turns: bool, publishers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a foreign writer, who has no turns."""
    if not turns:
        monkeypatch.setattr(publication, "turn", lambda _: nullcontext())
    monkeypatch.setattr(turns, "SECONDS", 300.0)
    # What conflicts with every other commit, by as many publishers as a machine has, for long.
    each = EACH_OF_MANY if (lake.format, layout, turns, publishers) == ("delta", "unpartitioned", True, 8) else EACH
    table = lake.create(f"{lake.table}_{layout.replace(' ', '_')}", partition=LAYOUTS[layout])
    lake.spark.sql(f"INSERT INTO {table} VALUES (DATE '2012-12-31', 0, 'neighbour')").collect()

    def publish(publisher: int) -> None:
        for day in range(1 + publisher * each, 1 + (publisher + 1) * each):
            attempt = lake.attempt(run_id=day, day=day)
            attempt.stage(table, f"run {day}", day=str(date_of(day)))
            attempt.publish()

    def insert() -> None:
        for n in range(2):
            lake.spark.sql(f"INSERT INTO {table} VALUES (DATE '2012-12-31', {n}, 'foreign')").collect()

    with ThreadPoolExecutor(publishers + 1) as threads:
        for done in [threads.submit(insert), *(threads.submit(publish, mine) for mine in range(publishers))]:
            done.result()
    ours = [f"{date_of(day).day} run {day}" for day in range(1, 1 + publishers * each)]
    assert lake.content(table) == sorted([*ours, *["31 foreign"] * 2, "31 neighbour"])
    assert lake.staged() == []
    lake.spark.sql(f"DROP TABLE {table}").collect()


@pytest.mark.long
@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)
def test_what_others_change_again_and_again_is_left_to_a_later_publisher(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "SECONDS", 0.0)
    attempt = lake.attempt()
    attempt.stage(lake.table, "ours")

    def permitted() -> bool:
        lake.spark.sql(f"INSERT INTO {lake.table} VALUES (DATE '2013-01-01', 7, 'foreign')").collect()
        return True

    attempt.ask = permitted
    with pytest.raises(NotNow) as put_off:
        attempt.publish()
    assert "conflict" in str(put_off.value.__cause__).lower()
    assert (lake.content(), lake.commits(), len(lake.staged())) == (["1 foreign"], 0, 1)
    later = lake.attempt(number=1)
    later.outputs = attempt.outputs
    later.publish(attempt.launch.attempt_id)
    assert (lake.content(), lake.commits(), lake.staged()) == (["1 ours"], 1, [])


@pytest.mark.parametrize("lake", ["delta", "iceberg"], indirect=True)
def test_a_column_that_is_gone_is_refused_at_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create(f"{lake.table}_other", partition="")
    attempt = lake.attempt()
    attempt.stage(table, "ours")
    lake.spark.sql(f"DROP TABLE {table}").collect()
    with pytest.raises(Exception, match="cannot be found") as refused:
        attempt.publish()
    assert not isinstance(refused.value, NotNow)
