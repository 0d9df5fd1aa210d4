"""The example's resource and asset in a real Dagster, against a console with tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.console import start_console
from tests.support.definitions import daily
from tests.support.installation import ROOT, Installation
from tests.support.servers import Servers

from retrofill_core.setting_types import Role
from retrofill_tools.client.tokens import add, make

# Dagster is installed once, if it is not there, which takes minutes.
pytestmark = pytest.mark.long
EXAMPLE = ROOT / "examples" / "dagster"
ENVIRONMENT = ROOT / ".venv-dagster"
PROGRAM = """
import json, sys
from dagster import materialize
from definitions import defs, delays

found = []
for first, last in (("2013-02-01", "2013-02-04"), ("2013-01-02", "2013-01-03")):
    tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
    done = materialize([delays], resources=defs.resources, tags=tags, raise_on_error=False)
    failures = [each.event_specific_data.error_display_string for each in done.all_events if each.is_step_failure]
    made = [each.metadata["runs"].value for each in done.asset_materializations_for_node("delays")]
    found.append({"run": done.run_id, "succeeded": done.success, "runs": made, "failures": failures})
with open(sys.argv[1], "w") as out:
    json.dump(found, out)
"""


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of Dagster's environment."""
    found = ENVIRONMENT / "bin" / "python"
    if not found.exists():
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        quiet = ("--quiet", "--disable-pip-version-check", "--require-hashes")
        subprocess.run([found, "-m", "pip", "install", *quiet, "-r", str(EXAMPLE / "requirements.lock")], check=True)
    return found


@pytest.fixture(scope="module")
def place(servers: Servers) -> Iterator[Installation]:
    made = servers.installation()
    made.start("backfill-planner")
    made.start("instant-starter", INSTANT_FAIL="2013-01-03")
    made.apply(daily("flights", timezone="America/New_York", max_active_runs=4))
    yield made
    made.close()


def test_a_range_of_partitions_is_one_backfill(python: Path, place: Installation, tmp_path: Path) -> None:
    secret, token = make("dagster", Role.PUBLISH)
    add(tmp_path / "tokens", token)
    url = start_console(place, RETROFILL_CONSOLE_TOKENS=str(tmp_path / "tokens")).url
    (tmp_path / "site").mkdir()
    # Of ours, the client alone.
    (tmp_path / "site" / "retrofill_client").symlink_to(ROOT / "shared" / "retrofill_client")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER", "RETROFILL"))},
        "DAGSTER_HOME": str(tmp_path),
        "BACKFILLS_URL": url,
        "BACKFILLS_TOKEN": secret,
        "PYTHONPATH": os.pathsep.join(map(str, [tmp_path / "site", EXAMPLE])),
    }
    command = [str(python), "-c", PROGRAM, str(tmp_path / "result.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    good, bad = json.loads((tmp_path / "result.json").read_text())
    # Each of its partitions has the facts of the one backfill.
    assert (good["succeeded"], good["runs"], good["failures"]) == (True, [4] * 4, [])
    assert (bad["succeeded"], bad["runs"]) == (False, [])
    assert (
        f"backfill dagster.{bad['run']}.flights of flights failed (1 failed, 1 succeeded); first: "
        in bad["failures"][0]
    )
    rows = place.query("SELECT id, triggered_by, runs FROM backfill ORDER BY requested_at")
    assert [(row["id"], row["triggered_by"], row["runs"]) for row in rows] == [
        (f"dagster.{each['run']}.flights", "dagster", runs) for each, runs in ((good, 4), (bad, 2))
    ]
    assert secret not in done.stderr
