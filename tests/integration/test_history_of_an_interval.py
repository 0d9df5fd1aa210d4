"""``retrofill intervals show``: who published what when, over all backfills."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.definitions import daily
from tests.support.installation import Installation
from tests.support.terminal import Cli, cli, point_at

__all__ = ["cli"]
DAY = "2020-01-02"


@pytest.mark.long
def test_each_processing_of_an_interval_is_listed_with_what_it_published(
    installation: Installation, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_at(installation, monkeypatch)
    installation.start("backfill-planner")
    installation.start("instant-starter", INSTANT_OUT=str(tmp_path))
    installation.apply(daily())
    ids = []
    for _ in range(2):
        ids.append(installation.request("p", "2020-01-01", "2020-01-03", reprocess_behavior="completed"))
        assert installation.wait_state(ids[-1], "succeeded", "failed") == "succeeded"
    shown = cli("intervals", "show", "p", DAY, "--json").document
    assert [(each["backfill_id"], each["state"]) for each in shown] == [(id, "succeeded") for id in ids]
    assert [each["published"] for each in shown] == [[{"name": f"{tmp_path}/day={DAY}"}]] * 2
    accepted = installation.query("SELECT accepted_attempt FROM run WHERE id = %s", shown[1]["run_id"])
    assert shown[1]["attempt_id"] == accepted[0]["accepted_attempt"]
    assert cli("runs", "show", str(shown[1]["run_id"]), "--json").document["history"] == shown
    lines = cli("intervals", "show", "p", DAY).out.splitlines()
    assert lines[0] == f"2020-01-02 – 2020-01-03: run {shown[0]['run_id']} of backfill {ids[0]}"
    assert lines[2] == f"  published {tmp_path}/day={DAY}"
    assert cli("intervals", "show", "p", "2020-02-01").out == "no run of p has processed 2020-02-01\n"
    unknown = cli("intervals", "show", "nothing", DAY)
    assert (unknown.status, unknown.err.count("\n")) == (1, 1)
