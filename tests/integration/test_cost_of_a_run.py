"""The servers' cost of one run when runs follow one another: every flush is a wait."""

from __future__ import annotations

import pytest
from tests.support.costs import costs
from tests.support.installation import Installation
from tests.support.light import apply_trivial, backfill
from tests.support.servers import Servers

pytestmark = pytest.mark.embedded
RUNS = 60
# ``make bench ONLY=between`` measures them. Since each attempt has a process of its own, the reports of a run's beginning and
# end mostly arrive in two batches, and are published in two transactions: 11.5 and 23 with this workload on two quiet cores,
# 12.5 and 25 beside another test run. One more wait for each run would be seen.
MAX_COMMITS, MAX_APPENDS = 14, 28


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
