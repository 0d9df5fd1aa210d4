"""Keys that a request's conf lacks for its scripts, and intervals of which a script stages one directory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.definitions import daily

from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.planning import Intervals, Reason
from retrofill_core.store.planning import shared_places, unfillable

# An hour before the clock in Los Angeles shows one hour twice.
FIRST = datetime(2023, 11, 5, 7, tzinfo=UTC)


def pipeline(*args: str, **more: Any) -> PipelineDefinition:
    task = {"name": "load", "kind": "submit", "submit": {"script": "/load.py", "args": args}}
    return PipelineDefinition.model_validate({**daily(**more).model_dump(mode="json"), "tasks": [task]})


def hours(count: int) -> Intervals:
    starts = [FIRST + timedelta(hours=n) for n in range(count)]
    return Intervals(starts, [start + timedelta(hours=1) for start in starts])


@pytest.mark.parametrize(
    ("args", "conf", "why"),
    [
        (["--city", "{conf[city]}"], {}, "task 'load': in '{conf[city]}': conf has no key 'city'"),
        (["{stage:{conf[out]}/x}"], {"out": "data"}, "give the absolute path of a directory"),
        (["{stage:{conf[out]}/x}"], {"out": "s3a://bucket"}, "a rename on s3a: does not fail"),
        (["{conf[n]:03d}"], {"n": "seven"}, "task 'load': in '{conf[n]:03d}': Unknown format code 'd'"),
        (["{conf[n]:03d}"], {"n": 7}, None),
        (["{stage:{conf[out]}/x}", "{staged:/y}"], {"out": "/data"}, None),
        (["{stage_partitions:{conf[out]}, h={interval.each:%Y%m%d%H}}"], {"out": "data"}, "give the absolute path"),
        (["{stage_partitions:/data, ../h={interval.start}}"], {}, "write it without '..'"),
        (["{stage_partitions:/data, h={interval.each:%Y%m%d%H}}"], {}, None),
        (["--plain"], {}, None),
    ],
)
def test_a_request_is_rejected_where_every_run_would_fail(
    args: list[str], conf: dict[str, Any], why: str | None
) -> None:
    refused = unfillable(pipeline(*args), conf, hours(1))
    assert (refused is None) == (why is None)
    if refused is not None and why is not None:
        assert refused.reason == Reason.BAD_ARGUMENTS and why in refused.message


@pytest.mark.parametrize(
    ("path", "zone", "shared"),
    [
        ("/out/{interval.start:%Y-%m-%d-%H}", "America/Los_Angeles", True),
        ("/out/{interval.start:%Y-%m-%d-%H%z}", "America/Los_Angeles", False),
        ("/out/{interval.start_utc:%Y-%m-%d-%H}", "America/Los_Angeles", False),
        ("/out/{interval.start:%Y-%m-%d-%H}", "UTC", False),
        ("/out", "UTC", True),
    ],
)
def test_intervals_that_stage_one_directory_are_named(path: str, zone: str, shared: bool) -> None:
    found = list(shared_places(pipeline(f"{{stage:{path}}}", timezone=zone), {}, hours(4)))
    assert len(found) == shared
    by_hour = path.replace("/out/", "/out, ").replace("interval.start_utc", "interval.each_utc")
    by_hour = f"{{stage_partitions:{by_hour.replace('interval.start', 'interval.each')}}}"
    if by_hour.count(","):
        assert len(list(shared_places(pipeline(by_hour, timezone=zone), {}, hours(4)))) == shared
    if shared and zone != "UTC":
        assert "the intervals 2023-11-05T01:00:00-07:00 and 2023-11-05T01:00:00-08:00 stage one directory" in found[0]
