"""The number of attempts that end in one transaction when their leases do."""

from __future__ import annotations

import pytest
from tests.support.rows import an_attempt

from run_starter.reports.leases import first_to_end


@pytest.mark.parametrize(
    ("runs", "together"), [([1] * 3000, 2500), ([2500, 1], 1), ([2000, 400, 200, 1], 2), ([4000, 1], 1), ([], 0)]
)
def test_a_transaction_ends_as_many_runs_as_one_range_has(runs: list[int], together: int) -> None:
    found = {id: an_attempt(id=id, runs=count) for id, count in enumerate(runs)}
    assert [row.id for row in first_to_end(found)] == list(range(together))
