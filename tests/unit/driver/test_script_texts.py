"""What the fields in a script's arguments become, by interval, zone and step; and what each mistake is told."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from retrofill.protocol.script_texts import BadArgument, Values, check, fill


def values(start: str, end: str, zone: str = "America/New_York") -> Values:
    of = ZoneInfo(zone)
    first, last = (datetime.fromisoformat(each).astimezone(of) for each in (start, end))
    run = {"id": 7, "attempt": 2, "backfill_id": "b"}
    return Values(
        first, last, run, {"city": "JFK", "n": 3, "deep": {"er": 1}}, lambda p: f"/staged{p}", lambda p: f"/read{p}"
    )


DAY = values("2013-01-01T05:00Z", "2013-01-02T05:00Z")
MONTH = values("2024-01-31T23:00Z", "2024-02-29T23:00Z", "Europe/Berlin")
SPRING = values("2024-03-10T05:00Z", "2024-03-11T04:00Z")
AUTUMN_HOUR = values("2024-11-03T06:00Z", "2024-11-03T07:00Z")
HALF = values("2024-01-01T18:30Z", "2024-01-02T18:30Z", "Asia/Kolkata")


@pytest.mark.parametrize(
    ("of", "text", "filled"),
    [
        (DAY, "{interval.start:%Y-%m-%d}..{interval.end:%Y-%m-%d}", "2013-01-01..2013-01-02"),
        (DAY, "{interval.last_day}", "2013-01-01"),
        (MONTH, "{interval.start:%Y-%m-%d} to {interval.last_day:%d.%m.%Y}", "2024-02-01 to 29.02.2024"),
        (HALF, "{interval.last_day} {interval.last_day_utc}", "2024-01-02 2024-01-02"),
        (values("2024-01-01T05:00Z", "2024-01-02T05:00Z"), "{interval.last_day_utc}", "2024-01-02"),
        (DAY, "{interval.start-28d:%Y-%m-%d}", "2012-12-04"),
        (DAY, "{interval.last_day-1w}/{interval.last_day+1d}", "2012-12-25/2013-01-02"),
        (
            MONTH,
            "{interval.end-1mo:%m-%d} {interval.last_day-1mo} {interval.last_day-1y}",
            "02-01 2024-01-29 2023-02-28",
        ),
        (MONTH, "{interval.start-2mo+1d:%Y-%m-%d}", "2023-12-02"),
        (SPRING, "{interval.start+1d:%Y-%m-%dT%H%z} {interval.start+24h:%dT%H}", "2024-03-11T00-0400 11T01"),
        (SPRING, "{interval.start+3h:%H} {interval.start-30min:%H:%M} {interval.end-1s:%X}", "04 23:30 23:59:59"),
        (AUTUMN_HOUR, "{interval.start:%H%z} {interval.start-1h:%H%z}", "01-0500 01-0400"),
        (HALF, "{interval.start_utc:%Y-%m-%dT%H:%M} {interval.start_epoch}", "2024-01-01T18:30 1704133800"),
        (HALF, "{interval.end_epoch-1d} {run.logical_date_epoch+1s}", "1704133800 1704133801"),
        (DAY, "{interval.end}", "2013-01-02 00:00:00-05:00"),
        (DAY, "{run.id:05d}/{run.attempt}/{run.backfill_id}/{run.logical_date:%j}", "00007/2/b/001"),
        (DAY, "{conf.city} {conf[city]:>5} {conf[deep][er]} {conf[n]:02d} {conf[deep]!r}", "JFK   JFK 1 03 {'er': 1}"),
        (DAY, "{stage:/out/{conf[city]}/day={interval.start-1d:%F}}", "/staged/out/JFK/day=2012-12-31"),
        (DAY, "{staged:/in}", "/read/in"),
        (DAY, '{{"day": "{interval.start:%F}"}} {{}} {{ds}}', '{"day": "2013-01-01"} {} {ds}'),
        (DAY, "plain % text", "plain % text"),
    ],
)
def test_texts_are_filled_in(of: Values, text: str, filled: str) -> None:
    assert fill([text], of) == [filled]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "--day={interval.strat}",
            "in '--day={interval.strat}': unknown field 'interval.strat': did you mean interval.start? use ",
        ),
        ("{interval.start-28}", "unknown field 'interval.start-28': did you mean interval.start? "),
        ("{interval.start-1q}", "steps in s, min, h, d, w, mo or y"),
        ("{interval.last_day-1h}", "interval.last_day is a day: take steps of d, w, mo or y, not of h"),
        ("{interval.last_day_epoch}", "use interval.end_epoch"),
        ("{interval.start-9999y}", "interval.start-9999y is outside the calendar"),
        ("{interval.start-99999w-99999w}", "is outside the calendar"),
        ("{conf[town]}", "conf has no key 'town': give it with the request (conf, --conf)"),
        ("{conf.deep.town}", "conf has no key 'town'"),
        ("{conf}{nothing}", "unknown field 'nothing'"),
        ('{"day": 1}', "A literal brace, as in JSON, is written twice"),
        ("{", "a literal brace, as in JSON, is written twice"),
        ("a}", "a literal brace, as in JSON, is written twice"),
        ("{run.id:%Y}", "in '{run.id:%Y}': Invalid format specifier"),
        ("{{ ds }}", "'{{ ds }}', a template of other tools: write {interval.start:%Y-%m-%d} for a day"),
        ("{{ data_interval_start | ds }}", "a template of other tools"),
        ("{% if x %}", "a template of other tools"),
        ("{}", "unknown field"),
        ("{0}", "unknown field '0'"),
        ("{run.__class__}", "unknown field 'run.__class__'"),
    ],
)
def test_a_mistake_is_told_with_its_text_in_one_line(text: str, why: str) -> None:
    with pytest.raises(BadArgument) as refused:
        fill([text], DAY)
    said = str(refused.value)
    assert why in said and text[:20] in said and "\n" not in said


@pytest.mark.parametrize(
    "text", ["{conf[any]:03d}", "{conf[a][b]:>5}", "{stage:{conf[out]}/x}", "{interval.last_day-1mo:%F}"]
)
def test_a_check_knows_no_conf_yet(text: str) -> None:
    check([text])


@pytest.mark.parametrize("text", ["{interval.strat}", "{", "{{ ds }}"])
def test_a_check_finds_what_no_conf_mends(text: str) -> None:
    with pytest.raises(BadArgument):
        check([text])
