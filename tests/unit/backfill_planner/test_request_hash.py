"""The hash of a request's content, recorded under its id. It must be stable across releases."""

from __future__ import annotations

import pytest

from backfill_planner.answers import Request
from retrofill_core.bus.envelope import Record
from retrofill_core.contract.backfills import BackfillRequested

BODY = {"pipeline": "flights", "from": "2013-01-01", "to": "2013-01-31"}
RECORDED = "5129243c3a41477d92a1182869a4dd633ceff1d700e4ec672f9dd4aafb275cc3"


def hash_of(**more: object) -> str:
    record = Record("backfill-requests", 0, 0, b"x", b"", {}, (), 0)
    return Request("x", BackfillRequested.model_validate({**BODY, **more}), record).hash


@pytest.mark.parametrize(
    "more", [{}, {"latest_code": False}, {"batch_size": None}, {"budget": None}, {"publish": "at_once"}, {"id": "x"}]
)
def test_a_repeat_is_known_again_by_a_later_release(more: dict[str, object]) -> None:
    assert hash_of(**more) == RECORDED


@pytest.mark.parametrize(
    "more", [{"latest_code": True}, {"batch_size": 7}, {"budget": {"failed_runs": 3}}, {"run_backwards": True}]
)
def test_another_wish_is_another_request(more: dict[str, object]) -> None:
    assert hash_of(**more) != RECORDED
