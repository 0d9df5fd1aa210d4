"""The scripts of ``examples/jobs/staged.py`` on the embedded stack, as a user runs them, and beside a plain run of each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.installation import ROOT, until
from tests.support.maven import maven
from tests.support.user import User

from retrofill.spark import java
from retrofill.spark.home import SparkHome
from retrofill_core.settings import Settings
from retrofill_tools.stack.spark import with_tables

pytestmark = [pytest.mark.spark, pytest.mark.long]
JOBS = ROOT / "examples" / "jobs"
DAYS = [f"2026-01-0{n}" for n in range(1, 6)]
FORMATS = ["iceberg", "delta"]
# By pipeline: its script, the option for the place that it writes, and its columns.
SCRIPTS = {
    "sales_by_hour": ("dynamic_overwrite.py", "--root", ["dt", "hour", "shop", "amount"]),
    "totals_merged": ("iceberg_merge.py", "--table", ["day", "shop", "amount"]),
    "totals_by_name": ("iceberg_by_name.py", "--database", ["day", "shop", "amount"]),
    "totals_replaced": ("delta_replace_where.py", "--table", ["day", "shop", "amount"]),
    "ranks_upserted": ("upsert_in_pandas.py", "--table", ["day", "shop", "amount", "rank"]),
    "totals_by_sql": ("totals.sql", "", ["day", "shop", "amount"]),
}
PLAIN = """
import json, runpy, sys
for argv in json.load(open(sys.argv[1])):
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")
"""


class World:
    """A user with a running stack, sales of five days, and the tables of all jobs, each twice: one is for plain runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.user = User(folder / "home")
        self.user.home.mkdir()
        settings = Settings()
        catalog = {
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": f"{folder}/lake",
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
        }
        self.conf = with_tables(catalog, FORMATS, maven(settings, java.find(settings)))
        self.user.environment |= {
            "RETROFILL_SPARK_TABLES": json.dumps(FORMATS),
            "RETROFILL_SPARK_CONF": json.dumps(catalog),
            "RETROFILL_SPARK_SUBMIT_CONF": json.dumps({"spark.ui.enabled": "false"}),
        }
        self.request = {"sales": f"{folder}/sales.json", "out": f"{folder}/out", "lake": "lake"}
        rows = [
            {"day": day, "hour": f"{hour:02}", "shop": shop, "amount": 10 * n + hour}
            for n, day in enumerate(DAYS)
            for hour in (7, 12, 23)
            for shop in ("a", "b", "cdef"[n % 4])
            if (day, hour) != (DAYS[3], 7)
        ]
        Path(self.request["sales"]).write_text("\n".join(map(json.dumps, rows)))

    def place(self, pipeline: str, *, plain: bool = False) -> str:
        out = self.folder / ("plain" if plain else "out")
        return {
            "sales_by_hour": f"{out}/by_hour",
            "totals_merged": f"lake.{'plain' if plain else 'shop'}.totals",
            "totals_by_name": f"lake.{'plain' if plain else 'shop'}.day_totals",
            "totals_replaced": f"delta.`{out}/totals`",
            "ranks_upserted": f"delta.`{out}/ranks`",
            "totals_by_sql": f"lake.{'plain' if plain else 'shop'}.sql_totals",
        }[pipeline]

    def create(self, spark: Any) -> None:
        for plain in (False, True):
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{'plain' if plain else 'shop'}").collect()
            for pipeline in list(SCRIPTS)[1:]:
                name = self.place(pipeline, plain=plain)
                format = "iceberg" if name.startswith("lake.") else "delta"
                more = ", rank bigint" if "rank" in pipeline else ""
                columns = f"(day date, shop string, amount bigint{more})"
                made = f"CREATE TABLE {name} {columns} USING {format} PARTITIONED BY (day)"
                spark.sql(f"{made} TBLPROPERTIES ('write.wap.enabled' = '{'by_name' in pipeline}')").collect()
                # A shop without sales, one that will be replaced, and a neighbor of the range.
                for day, shop in ((DAYS[1], "old"), (DAYS[1], "a"), ("2026-01-06", "a")):
                    rank = ", 1" if more else ""
                    spark.sql(f"INSERT INTO {name} VALUES (DATE '{day}', '{shop}', 1{rank})").collect()

        schema = "day string, hour string, shop string, amount bigint"
        sales = spark.read.schema(schema).json(self.request["sales"])
        sales.selectExpr("CAST(day AS date) AS day", "hour", "shop", "amount").writeTo("lake.shop.sales").create()

    def seen(self, spark: Any, pipeline: str, *, plain: bool = False) -> list[tuple[str, ...]]:
        """What a reader sees."""
        name = self.place(pipeline, plain=plain)
        if name.startswith("lake."):
            spark.sql(f"REFRESH TABLE {name}").collect()
        if not name.startswith("/"):
            rows = spark.table(name)
        elif any(Path(name).glob("dt=*/*/part-*")):
            rows = spark.read.parquet(name)
        else:
            return []
        return sorted(tuple(map(str, row)) for row in rows.select(*SCRIPTS[pipeline][2]).collect())

    def plain_run(self, spark: Any) -> None:
        """The query for all days, and all scripts for each, one after the other."""
        sales = spark.table("lake.shop.sales").where(f"day BETWEEN '{DAYS[0]}' AND '{DAYS[-1]}'").groupBy("day", "shop")
        totals = sales.sum("amount").withColumnRenamed("sum(amount)", "amount")
        totals.writeTo(self.place("totals_by_sql", plain=True)).overwritePartitions()
        calls = [
            [
                str(JOBS / script),
                "--day",
                day,
                "--sales",
                self.request["sales"],
                option,
                self.place(pipeline, plain=True).removesuffix(".day_totals"),
            ]
            for pipeline, (script, option, _) in SCRIPTS.items()
            for day in DAYS
            if script.endswith(".py")
        ]
        script, given = self.folder / "plain.py", self.folder / "calls.json"
        script.write_text(PLAIN)
        given.write_text(json.dumps(calls))
        home = SparkHome.of(Settings())
        command = [*home.command(self.conf, self.folder, "client"), str(script), str(given)]
        environment = {**os.environ, **home.environment(self.folder, os.environ)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]

    def asked(self, pipeline: str, first: str = DAYS[0], last: str = DAYS[-1], **conf: str) -> list[str]:
        """A pipeline, and what is asked of it."""
        return [pipeline, "--from", first, "--to", last, "--conf", json.dumps({**self.request, **conf})]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="retrofill-jobs-") as folder:
        made = World(Path(folder))
        try:
            made.user.run("up")
            made.user.run("pipelines", "apply", str(JOBS / "staged.py"))
            yield made
        finally:
            made.user.run("down")


@pytest.fixture(scope="module")
def spark(world: World) -> Iterator[Any]:
    """A reader's session."""
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.builder.remote(world.user.json("status")["spark"]["remote"]).create()
    world.create(session)
    world.plain_run(session)
    yield session
    session.stop()


@pytest.mark.parametrize("pipeline", SCRIPTS)
def test_a_job_is_reviewed_published_and_undone_and_gives_what_a_plain_run_gives(
    world: World, spark: Any, pipeline: str
) -> None:
    before, plain = world.seen(spark, pipeline), world.seen(spark, pipeline, plain=True)
    shown = world.user.run("backfill", "dry-run", *world.asked(pipeline), "--review")
    assert "5 " in shown and "stages nothing" not in shown, shown
    world.user.run("backfill", "create", *world.asked(pipeline), "--id", pipeline, "--review")
    until(lambda: world.user.progress(pipeline)[0] in ("in_review", "failed"), "it is in review", seconds=900)
    assert world.user.json("backfill", "show", pipeline)["state"] == "in_review"
    assert world.seen(spark, pipeline) == before
    changed = world.user.json("backfill", "diff", pipeline)
    assert changed, "the diff shows what would change"
    world.user.run("backfill", "publish", pipeline, "--watch")
    assert world.seen(spark, pipeline) == plain != before
    world.user.run("backfill", "undo", pipeline, "--yes", "--watch")
    assert world.seen(spark, pipeline) == before
    if not world.place(pipeline).startswith("/"):
        left = spark.sql("SHOW TABLES IN lake.shop").collect()
        assert sorted(row.tableName for row in left) == ["day_totals", "sales", "sql_totals", "totals"]
        assert sorted(each.name for each in (world.folder / "out").iterdir() if "__retrofill" in each.name) == []


# By pipeline: another conf, or other sales, and what the first line of the error says.
BROKEN = [
    ("sales_by_hour", {"sales": "/nowhere.json"}, None, "Path does not exist: file:/nowhere.json"),
    ("sales_by_hour", {}, {"day": DAYS[2], "shop": "a", "amount": 1}, "`hour` cannot be resolved"),
    ("totals_merged", {"lake": "pond"}, None, "pond.shop.totals"),
    ("totals_by_name", {}, {"day": DAYS[2], "shop": "a", "amount": "many"}, "'many'"),
    ("totals_replaced", {"out": "/nowhere"}, None, "/nowhere/totals"),
    ("ranks_upserted", {}, {"day": DAYS[2], "shop": "a", "amount": "many"}, "amount"),
    (
        "totals_by_sql",
        {"lake": "pond"},
        None,
        "totals.sql, line 2, in statement 1 of 2: [REQUIRES_SINGLE_PART_NAMESPACE]",
    ),
]


@pytest.mark.parametrize(("pipeline", "conf", "row", "cause"), BROKEN, ids=[f"{each[0]}-{each[3]}" for each in BROKEN])
def test_of_a_broken_job_the_first_line_of_the_error_names_the_cause(
    world: World, spark: Any, pipeline: str, conf: dict[str, str], row: dict[str, Any] | None, cause: str
) -> None:
    before, id = world.seen(spark, pipeline), f"broken_{BROKEN.index((pipeline, conf, row, cause))}"
    if row is not None:
        (world.folder / f"{id}.json").write_text(json.dumps(row))
        conf = {"sales": f"{world.folder}/{id}.json"}
    asked = world.asked(pipeline, DAYS[2], DAYS[2], **conf)
    world.user.run("backfill", "create", *asked, "--id", id, "--reprocess", "completed", "--watch", status=1)
    assert cause in world.user.shown_error(id)
    assert world.seen(spark, pipeline) == before


@pytest.mark.usefixtures("spark")  # its tables
def test_a_module_that_a_script_lacks_is_named_in_the_first_line(world: World) -> None:
    wrong = shutil.copytree(JOBS, world.folder / "wrong")
    scripts = {pipeline: script for pipeline, (script, *_) in SCRIPTS.items() if script.endswith(".py")}
    for script in scripts.values():
        text = (wrong / script).read_text()
        assert "import argparse\n" in text
        (wrong / script).write_text(text.replace("import argparse\n", f"import missing_in_{script[:-3]}\n"))
    world.user.run("pipelines", "apply", str(wrong / "staged.py"))
    for pipeline in scripts:
        asked = world.asked(pipeline, DAYS[2], DAYS[2])
        world.user.run("backfill", "create", *asked, "--id", f"lacks_{pipeline}", "--reprocess", "completed")
    world.user.run("pipelines", "apply", str(JOBS / "staged.py"))
    for pipeline, script in scripts.items():
        until(lambda id=f"lacks_{pipeline}": world.user.progress(id)[0] == "failed", "it has failed", seconds=600)  # type: ignore[misc]
        assert f"ModuleNotFoundError: No module named 'missing_in_{script[:-3]}'" in world.user.shown_error(
            f"lacks_{pipeline}"
        )
