"""Backfills whose runs wait for others: ``show`` names who has the seats and slots, and gives no time left."""

from __future__ import annotations

import pytest
from tests.support.definitions import daily
from tests.support.installation import Installation, until
from tests.support.terminal import Cli, cli, point_at

__all__ = ["cli"]

LIVE = "SELECT count(*) FROM attempt WHERE backfill_id = '{id}' AND slot IS NOT NULL"
OLD = ("2019-01-01", "2019-01-01")


@pytest.mark.long
@pytest.mark.parametrize("limit", [4, 2])
def test_who_has_the_seats_or_slots_that_it_waits_for(
    installation: Installation, cli: Cli, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    stack = installation
    point_at(stack, monkeypatch)
    stack.start("backfill-planner")
    stack.apply(daily(max_active_runs=limit))
    stack.apply(daily("q"))
    said = cli(
        "backfill", "create", "p", "--from", "2020-01-01", "--to", "2020-01-09", "--id", "a", "--max-active-runs", "100"
    )
    assert f"9 runs of p, {limit} at once (100 asked, the pipeline allows {limit})" in said.out
    stack.start("instant-starter", RETROFILL_DRIVER_SLOTS="2", INSTANT_SECONDS="3600")
    until(lambda: stack.value(LIVE.format(id="a")) == 2, "its drivers work")
    for id, pipeline in (("b", "p"), ("c", "q")):
        stack.outcome(stack.request(pipeline, *OLD, id=id))
    seat = "waits for a seat: 2 of 2 seats of pool default are used by backfill a (2)"
    slot = "waits for a slot: 2 of 2 slots of pipeline p are used by backfill a (2)"
    for id, why in (("b", slot if limit == 2 else seat), ("c", seat)):
        facts = cli("backfill", "show", id, "--json").document
        assert (facts["held_back"], facts["estimate"]) == (why, None)
    assert cli("backfill", "show", "a", "--json").document["held_back"] is None
    assert f"{limit} (100 asked, the pipeline allows {limit})" in cli("backfill", "show", "a").out
    changed = cli("backfill", "change", "a", "--max-active-runs", "1").out
    assert "at most 1 attempts at once, of" in changed


def test_who_writes_what_it_waits_to_write(
    installation: Installation, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = installation
    point_at(stack, monkeypatch)
    stack.start("backfill-planner")
    stack.apply(daily("p", max_active_runs=4, writes=["jdbc:orders", "jdbc:shops"]))
    stack.apply(daily("q", writes=["kafka:orders", "jdbc:shops"]))
    stack.apply(daily("r"))
    said = cli("backfill", "dry-run", "q", "--from", "2020-01-01", "--to", "2020-01-02")
    assert "runs that write jdbc:shops take turns, one attempt at a time, also those of p" in said.err
    stack.start("instant-starter", RETROFILL_DRIVER_SLOTS="4", INSTANT_SECONDS="3600")
    for id, pipeline in (("a", "p"), ("b", "q"), ("c", "r")):
        stack.outcome(stack.request(pipeline, "2019-01-01", "2019-01-03", id=id))
        if id == "a":
            until(lambda: stack.value(LIVE.format(id="a")) == 1, "it writes")
    until(lambda: stack.value(LIVE.format(id="c")) == 3, "who writes nothing works beside it")
    facts = cli("backfill", "show", "b", "--json").document
    why = "waits to write jdbc:shops, which backfill a writes: they take turns"
    assert (facts["held_back"], facts["estimate"]) == (why, None)
    assert cli("backfill", "show", "a", "--json").document["held_back"] is None
    assert [stack.value(LIVE.format(id=id)) for id in "ab"] == [1, 0], "one of its three runs, although four may run"
    refused = cli("backfill", "create", "p", "--from", "2020-01-01", "--to", "2020-01-01", "--review")
    assert "declares writes=['jdbc:orders', 'jdbc:shops'], which is not staged" in refused.err
