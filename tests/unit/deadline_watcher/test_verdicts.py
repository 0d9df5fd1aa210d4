"""Misses that may share a digest."""

from dataclasses import replace

import pytest
from tests.support.rows import a_deadline

from deadline_watcher.verdicts import kind_of

ONE = a_deadline(kwargs={"team": "x"}, digest_seconds=300.0)


def test_those_that_are_called_alike_do():
    assert kind_of(ONE) == kind_of(replace(ONE, id=9, kwargs={"team": "x"}))


@pytest.mark.parametrize(
    "edit",
    [
        {"callback": None},
        {"callback": "other"},
        {"callback_kind": "webhook"},
        {"callback_options": {"at_most_once": True}},
        {"kwargs": {}},
        {"digest_seconds": 60.0},
        {"digest_seconds": None},
        {"alert": "other"},
        {"pipeline": "q"},
    ],
)
def test_those_that_an_edit_of_the_pipeline_told_apart_do_not(edit):
    assert kind_of(replace(ONE, **edit)) != kind_of(ONE)
