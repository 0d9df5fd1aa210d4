"""The benchmarks that write their own rows, with few of them: they fit the tables as they are."""

from __future__ import annotations

from benchmarks.claims_scale import freed
from benchmarks.history import measured
from tests.support.installation import Installation


def test_the_one_of_history_closes_a_digest_and_purges(installation: Installation) -> None:
    # The digest holds the first thousand runs' backfill back, so the other one is purged.
    figures = {each.name: each.median for each in measured(installation, 2000, 1000)}
    assert figures["rows that it deleted"] == 1000, figures


def test_the_one_of_claims_frees_slots(installation: Installation) -> None:
    cost = freed(installation, 2, 1000)
    assert cost["commits"] == 1, cost
