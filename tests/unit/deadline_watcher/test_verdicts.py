"""Which misses may share a digest."""

import pytest

from deadline_watcher.verdicts import kind_of

ROW = {
    "pipeline": "p",
    "alert": "slow",
    "callback": "page",
    "callback_kind": "function",
    "callback_options": {"at_most_once": False},
    "kwargs": {"team": "x"},
    "digest_seconds": 300.0,
}


def test_those_that_are_called_alike_do():
    assert kind_of(ROW) == kind_of(ROW | {"id": 9, "kwargs": {"team": "x"}})


@pytest.mark.parametrize(
    "edit",
    [
        {"callback": None},
        {"callback": "other"},
        {"callback_kind": "webhook"},
        {"callback_options": {"at_most_once": True}},
        {"kwargs": {}},
        {"digest_seconds": 60.0},
        {"alert": "other"},
        {"pipeline": "q"},
    ],
)
def test_those_that_an_edit_of_the_pipeline_told_apart_do_not(edit):
    assert kind_of(ROW | edit) != kind_of(ROW)
