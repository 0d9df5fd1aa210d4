"""Each job of ``examples/jobs``, broken in the ways that are found before anything runs: a missing file, key or secret."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.support.installation import ROOT
from tests.support.loading import definition_of, load_pipelines

from retrofill.errors import UserError
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.planning import Intervals
from retrofill_core.settings import Settings
from retrofill_core.store.planning import unfillable
from retrofill_tools.cli.pipelines import check_secrets, missing_files

FILES = ("programs.py", "in_java.py", "staged.py")
# By job: the files that it names, the keys of its conf, and its secrets.
JOBS: dict[str, tuple[Sequence[str], Sequence[str], Sequence[str]]] = {
    "orders_report": (["report.py"], ["orders", "out"], []),
    "orders_cli": (["run_salestool.py"], ["orders", "out"], ["SALESTOOL_TOKEN"]),
    "orders_database": (["from_database.py"], ["out", "url"], ["SHOP_PASSWORD"]),
    "orders_configured": (["configured.py", "shops.csv", "job.json"], ["orders", "out"], []),
    "orders_marts": (["build_marts.sh", "models", "profile.env"], ["orders", "out"], ["WAREHOUSE_PASSWORD"]),
    "orders_java": (["sales.jar"], ["orders", "out"], []),
    "sales_by_hour": (["dynamic_overwrite.py"], ["sales", "out"], []),
    "totals_merged": (["iceberg_merge.py"], ["sales", "lake"], []),
    "totals_by_name": (["iceberg_by_name.py"], ["sales", "lake"], []),
    "totals_replaced": (["delta_replace_where.py"], ["sales", "out"], []),
    "ranks_upserted": (["upsert_in_pandas.py"], ["sales", "out"], []),
    "totals_by_sql": ([], ["lake"], []),
}
DAY = datetime(2026, 1, 1, tzinfo=UTC)
FOUND = Intervals([DAY], [DAY + timedelta(days=1)])
CONF = {"orders": "/orders", "out": "/out", "url": "jdbc:postgresql://db/shop", "sales": "/sales.json", "lake": "lake"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the jobs, with a jar."""
    copied = shutil.copytree(ROOT / "examples" / "jobs", tmp_path / "jobs")
    (copied / "sales.jar").touch()
    return copied


def definitions(folder: Path) -> dict[str, PipelineDefinition]:
    found = [each for file in FILES for each in load_pipelines(folder / file)]
    return {pipeline.name: definition_of(pipeline, code) for pipeline, code in found}


def test_all_jobs_are_listed_and_whole(folder: Path) -> None:
    found = definitions(folder)
    assert sorted(found) == sorted(JOBS)
    for name, definition in found.items():
        _, keys, secrets = JOBS[name]
        assert missing_files(definition, [folder]) == []
        assert unfillable(definition, {key: CONF[key] for key in keys}, FOUND) is None
        scripts = [task.submit for task in definition.tasks if task.submit is not None]
        assert [secret for script in scripts for secret in script.secrets] == secrets


def test_a_missing_file_is_named_when_they_are_applied(folder: Path) -> None:
    for each in {each for files, _, _ in JOBS.values() for each in files}:
        (folder / each).rename(folder / "gone")
        found = definitions(folder)
        (name,) = [job for job, (files, _, _) in JOBS.items() if each in files]
        with pytest.raises(UserError) as refused:
            missing_files(found[name], [folder])
        (folder / "gone").rename(folder / each)
        why = f"{folder / each} does not exist: correct the path, or put the file there"
        assert re.fullmatch(rf"{name}: task '\w+': {re.escape(why)}", str(refused.value))


def test_a_missing_file_of_sql_is_named_when_they_are_applied(folder: Path) -> None:
    (folder / "totals.sql").unlink()
    why = f"^task 'totals': {folder / 'totals.sql'} cannot be read: No such file or directory$"
    with pytest.raises(ValueError, match=why):
        definitions(folder)


def test_a_missing_key_is_named_by_the_request_and_its_dry_run(folder: Path) -> None:
    for name, definition in definitions(folder).items():
        for key in JOBS[name][1]:
            refused = unfillable(definition, {each: CONF[each] for each in JOBS[name][1] if each != key}, FOUND)
            assert refused is not None, (name, key)
            assert f"conf has no key '{key}': give it with the request (conf, --conf)" in refused.message


def test_a_missing_secret_is_named_when_they_are_applied(folder: Path) -> None:
    other = Settings.model_validate({"pools": {"default": {"env": {"OTHER": {"file": "/x"}}}}})
    for name, definition in definitions(folder).items():
        for secret in JOBS[name][2]:
            with pytest.raises(UserError, match=f"pool default has no secret '{secret}'; it has: OTHER: give"):
                check_secrets(definition, other)
