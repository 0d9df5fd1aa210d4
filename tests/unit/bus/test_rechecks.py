"""All that is active is checked again every minute: each key once, and never all at the same time."""

import pytest
from sqlalchemy import Connection
from tests.support.offline import acting_as

from retrofill_core.bus.handler import ALL_ACTIVE, ALL_NOW, EVERY_SECONDS, GROUP_SIZE, check_all_active
from retrofill_core.bus.transaction import NO_EPOCH, Transaction
from retrofill_core.bus.worker.shard import Shard
from retrofill_core.contract.topics import PLANNER


def looks(count, asked=ALL_ACTIVE):
    """The keys that are due, in order, by the moment at which a shard next looks."""
    tx = Transaction(acting_as(Connection, None), PLANNER, 0, NO_EPOCH, 1000)
    check_all_active(tx, asked, [f"b{n}" for n in range(count)])
    shard = Shard(0, ("topic",))
    for key, after in tx.checks.items():
        shard.schedule_check(key, after)
    found = {}
    while shard.checks:
        now = min(shard.checks.values())
        found[now] = shard.due_checks(now)
        for key in found[now]:
            del shard.checks[key]
    return found


@pytest.mark.parametrize("count", [0, 1, GROUP_SIZE, GROUP_SIZE + 1, 500])
def test_they_are_spread_over_the_minute_in_groups_that_share_a_transaction(count):
    found = looks(count)
    assert found.pop(EVERY_SECONDS) == [ALL_ACTIVE]
    assert [key for keys in found.values() for key in keys] == [f"b{n}" for n in range(count)]
    assert max(map(len, found.values()), default=0) <= GROUP_SIZE
    pause = EVERY_SECONDS / max(len(found), 1)
    assert list(found) == pytest.approx([n * pause for n in range(len(found))])


def test_all_of_them_are_checked_at_once_if_asked_for():
    assert {at: len(keys) for at, keys in looks(500, ALL_NOW).items()} == {0.0: 500}
