"""Values as literals of SQL, and which values parameters have."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.unit.driver.launches import launch_of, run_of

from retrofill.driver.preparing import Fields
from retrofill.driver.sql import literal
from retrofill.outputs.staging import Staging


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "NULL"),
        (True, "TRUE"),
        (7, "7"),
        (-7, "(-7)"),
        (2**31, "2147483648L"),
        (-(2**63) - 1, "(-9223372036854775809BD)"),
        (0.5, "DOUBLE('0.5')"),
        (-1e-9, "DOUBLE('-1e-09')"),
        ("Zürich", "'Zürich'"),
        ("it's", "decode(unhex('69742773'), 'UTF-8')"),
        ("a\\", "decode(unhex('615c'), 'UTF-8')"),
        ("${env:HOME}", "decode(unhex('247b656e763a484f4d457d'), 'UTF-8')"),
        ("two\nlines", "decode(unhex('74776f0a6c696e6573'), 'UTF-8')"),
        (date(2013, 1, 31), "DATE '2013-01-31'"),
        (datetime(2013, 1, 1, tzinfo=ZoneInfo("America/New_York")), "TIMESTAMP '2013-01-01 05:00:00 UTC'"),
        (["a", 1], "array('a', 1)"),
        ({"a": [None]}, "named_struct('a', array(NULL))"),
    ],
)
def test_literals_mean_the_same_in_each_session(value: object, expected: str) -> None:
    assert literal(value) == expected


def test_parameters_have_types() -> None:
    launch = launch_of(
        run_of(7, "2013-01-31T05:00:00+00:00", "2013-02-01T05:00:00+00:00", attempt=2),
        pipeline={"timezone": "America/New_York"},
        conf={"city": "JFK", "n": 3, "deep": {"er": [1.5, True]}},
    )
    own: dict[str, Any] = {
        "city": "{conf[city]}",
        "n": "{conf.n}",
        "deep": "{conf[deep][er]}",
        "since": "{interval.start-28d}",
        "since_text": "{interval.start-28d:%Y%m%d}",
        "path": "/data/{conf[city]}",
        "plain": "text",
        "number": 0.5,
        "none": None,
    }
    found = Fields(launch, launch.pieces[0], Staging(launch, launch.pieces[0]), "a").parameters(own)
    zone = ZoneInfo("America/New_York")
    assert found == {
        "start": datetime(2013, 1, 31, tzinfo=zone),
        "end": datetime(2013, 2, 1, tzinfo=zone),
        "first_day": date(2013, 1, 31),
        "last_day": date(2013, 1, 31),
        "run_id": 7,
        "run_attempt": 2,
        "backfill_id": "b",
        **own,
        "city": "JFK",
        "n": 3,
        "deep": [1.5, True],
        "since": datetime(2013, 1, 3, tzinfo=zone),
        "since_text": "20130103",
        "path": "/data/JFK",
    }
