"""What one run costs the servers when runs follow one another: every flush is a wait."""

from __future__ import annotations

import pytest
from tests.support.costs import costs
from tests.support.installation import Installation
from tests.support.light import apply_trivial, backfill
from tests.support.servers import Servers

pytestmark = pytest.mark.embedded
RUNS = 60
# ``make bench ONLY=between`` measures them: 7 to 8, and 15 to 16. On a busy machine the reports of
# a run's beginning and end arrive in two batches, and are published in two transactions: 10 and 21
# were seen beside another test run.
MAX_COMMITS, MAX_APPENDS = 12, 24


def test_one_by_one_a_run_costs_few_commits_and_appends(installation: Installation, servers: Servers) -> None:
    for name in ("backfill-planner", "deadline-watcher", "callback-runner"):
        installation.start(name)
    installation.start("light-starter", RETROFILL_DRIVER_SLOTS="1")
    apply_trivial(installation, "p", 1)
    backfill(installation, "p", "2012-01-01", "2012-01-05", "warm")
    log = servers.home / "kafka"
    before = costs(installation, log)
    backfill(installation, "p", "2013-01-01", "2013-03-01", "measured")
    commits, appends = costs(installation, log).since(before, RUNS)
    assert (commits <= MAX_COMMITS, appends <= MAX_APPENDS) == (True, True), (commits, appends)
