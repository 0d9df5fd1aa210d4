"""Publishers take the accepted runs of many attempts, in start order, and never divide those of one."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import NOW, a_run

from retrofill.protocol.table_output import TableOutput
from retrofill.sdk.names import MAX_BATCH
from retrofill_core.domain.run import RunState
from retrofill_core.store.claims import Accepted
from run_starter.claims.publishing import PUBLISHED_AT_ONCE, joined

CODE, OTHER = {"file": "/p.py"}, {"file": "/q.py"}
TABLE = str(TableOutput("lake.t", "lake.staged", "day", "date", "delta", identity="t"))


def accepted(*positions: int, code: dict[str, str] | None = CODE, lost: bool = False, output: str = "/out") -> Accepted:
    runs = [
        a_run(
            id=position,
            position=position,
            state=RunState.STAGED,
            accepted_attempt=positions[0] + 1,
            lost_at=NOW if lost else None,
            outputs={"folders": [output]},
        )
        for position in positions
    ]
    return Accepted(runs, code)


def parts(found: Sequence[Accepted], most: int) -> list[list[int]]:
    return [[run.position for run in each.runs] for each in joined(found, most)]


SINGLES = [accepted(n) for n in range(6)]


@pytest.mark.parametrize(
    ("found", "most", "expected"),
    [
        ([], 2, []),
        (SINGLES, 0, []),
        (SINGLES, 1, [[0, 1, 2, 3, 4, 5]]),
        (SINGLES, 2, [[0, 1, 2], [3, 4, 5]]),
        (SINGLES, 4, [[0, 1], [2, 3], [4, 5]]),
        (SINGLES, 9, [[0], [1], [2], [3], [4], [5]]),
        # What one attempt has staged stays together, though that makes the parts unequal.
        ([accepted(0, 1, 2, 3), accepted(4), accepted(5)], 2, [[0, 1, 2, 3], [4, 5]]),
        ([accepted(0, 2), accepted(1, 3)], 1, [[0, 2, 1, 3]]),
        # Each has its own code, its own Spark, and is lost alone again.
        ([accepted(0), accepted(1, code=OTHER), accepted(2, code=OTHER)], 1, [[0]]),
        ([accepted(0), accepted(1, code=OTHER), accepted(2, code=OTHER)], 2, [[0], [1, 2]]),
        ([accepted(0, code=None), accepted(1)], 2, [[0], [1]]),
        ([accepted(0), accepted(1, output=TABLE), accepted(2, output=TABLE)], 2, [[0], [1, 2]]),
        ([accepted(0), accepted(1, lost=True), accepted(2)], 1, [[0]]),
        ([accepted(0, lost=True), accepted(1, lost=True)], 1, [[0]]),
        # A publisher spans no more positions than any attempt.
        ([accepted(0), accepted(MAX_BATCH)], 1, [[0]]),
        ([accepted(0), accepted(MAX_BATCH - 1)], 1, [[0, MAX_BATCH - 1]]),
    ],
)
def test_parts(found: list[Accepted], most: int, expected: list[list[int]]) -> None:
    assert parts(found, most) == expected


@given(sizes=st.lists(st.integers(1, 150), max_size=300), most=st.integers(1, 20))
def test_parts_are_bounded_and_in_order(sizes: list[int], most: int) -> None:
    found, first = [], 0
    for size in sizes:
        found.append(accepted(*range(first, first + size)))
        first += size
    made = parts(found, most)
    assert len(made) <= most
    flat = [position for part in made for position in part]
    assert flat == list(range(len(flat)))
    assert all(len(part) <= PUBLISHED_AT_ONCE or len(part) in sizes for part in made)
    # Whatever was read of single runs is published at once.
    if set(sizes) <= {1} and len(sizes) <= most * PUBLISHED_AT_ONCE:
        assert len(flat) == len(sizes)
