"""Commands for a backfill that does not exist, on the simulated store."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.sessions import MemoryStore

from backfill_planner.commands import COMMANDS, handle_command
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.handler import Received
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.topics import PLANNER, Topic


@pytest.mark.parametrize("kind", COMMANDS)
def test_each_is_refused_with_a_way_on(kind: Any) -> None:
    command = kind()
    record = Record(Topic.BACKFILL_REQUESTS, 0, 0, b"nobody", b"{}", {}, (), 0)

    def play(conn: Any) -> bytes | None:
        tx = Transaction(conn, PLANNER, 0, 0, 900_000)
        handle_command(tx, Received(record, "nobody", command, "c"), command, 1)
        (answer,) = tx.outgoing
        return answer.value

    (answer,) = MemoryStore().play([("a", play)])
    assert b"BackfillCommandRejected" in answer
    assert b"'retrofill backfill list'" in answer
