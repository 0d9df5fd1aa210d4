"""Values of the fields in a script's arguments, by interval, zone and step, and the message for each mistake."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from retrofill.protocol.script_texts import (
    BadArgument,
    Values,
    check,
    fill,
    fill_between,
    fill_path,
)
from retrofill.sdk.texts import fields_between, outline


def values(start: str, end: str, zone: str = "America/New_York") -> Values:
    of = ZoneInfo(zone)
    first, last = (datetime.fromisoformat(each).astimezone(of) for each in (start, end))
    run = {"id": 7, "attempt": 2, "backfill_id": "b"}
    return Values(
        first,
        last,
        run,
        {"city": "JFK", "n": 3, "deep": {"er": 1}},
        lambda p: f"/staged{p}",
        lambda p: f"/read{p}",
        lambda path, names: f"{path} of {' '.join(names)}",
        {"KEY": "p{4}ss", "OTHER": "x"},
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


WEEK = values("2013-01-01T05:00Z", "2013-01-08T05:00Z")
AUTUMN = values("2024-11-03T04:00Z", "2024-11-04T05:00Z")
SAMOA = values("2011-12-29T10:00Z", "2011-12-31T10:00Z", "Pacific/Apia")


@pytest.mark.parametrize(
    ("of", "partition", "names"),
    [
        (DAY, "dt={interval.start:%Y-%m-%d}", ["dt=2013-01-01"]),
        (DAY, "year={interval.start:%Y}/month={interval.start:%-m}", ["year=2013/month=1"]),
        (DAY, "dt={interval.each}", ["dt=2013-01-01"]),
        (DAY, "dt={interval.each_utc:%Y%m%d}", ["dt=20130101", "dt=20130102"]),
        (WEEK, "dt={interval.each:%Y-%m-%d}", [f"dt=2013-01-0{n}" for n in range(1, 8)]),
        (WEEK, "w={interval.each:%G-W%V}", ["w=2013-W01", "w=2013-W02"]),
        (MONTH, "y={interval.each:%Y}/m={interval.each:%m}", ["y=2024/m=02"]),
        (
            DAY,
            "city={conf[city]}/dt={interval.each:%Y-%m-%d}/h={interval.each:%H}",
            [f"city=JFK/dt=2013-01-01/h={n:02}" for n in range(24)],
        ),
        (DAY, "h={interval.each:%Y-%m-%d %H}%3A00%3A00", [f"h=2013-01-01 {n:02}%3A00%3A00" for n in range(24)]),
        (SPRING, "h={interval.each:%Y%m%d%H}", [f"h=20240310{n:02}" for n in range(24) if n != 2]),
        (AUTUMN, "h={interval.each:%Y%m%d%H}", [f"h=20241103{n:02}" for n in range(24)]),
        (AUTUMN_HOUR, "h={interval.each:%Y%m%dT%H%z}", ["h=20241103T01-0500"]),
        (AUTUMN_HOUR, "h={interval.each_utc:%Y%m%d}/{interval.each_utc:%-H}", ["h=20241103/6"]),
        (HALF, "d={interval.each_utc:%F}".replace("%F", "%Y-%m-%d"), ["d=2024-01-01", "d=2024-01-02"]),
        (SAMOA, "d={interval.each:%Y-%m-%d}", ["d=2011-12-29", "d=2011-12-31"]),
    ],
)
def test_partitions_are_those_of_the_interval(of: Values, partition: str, names: list[str]) -> None:
    assert fill([f"--out={{stage_partitions:/a,b/{{conf[city]}}, {partition}}}"], of) == [
        f"--out=/a,b/JFK of {' '.join(names)}"
    ]


TABLES = ["{conf[lake]}.db.orders", "lake.db.refunds"]


def test_a_declared_table_gets_another_name_however_it_is_named() -> None:
    of = replace(
        DAY,
        conf={"lake": "ours"},
        tables=TABLES,
        lend=lambda number, name: f"{number} for {name}",
        locate=lambda number, name: f"s3a://lake/{number}",
    )
    texts = [
        "--into={stage_table:{conf[lake]}.db.orders}",
        "{stage_table:lake.db.refunds}",
        "{stage_table:ours.db.orders}",
    ]
    assert fill(texts, of) == ["--into=0 for ours.db.orders", "1 for lake.db.refunds", "0 for ours.db.orders"]
    assert fill(["{stage_location:lake.db.refunds}/day={interval.start:%F}"], of) == ["s3a://lake/1/day=2013-01-01"]
    with pytest.raises(
        BadArgument, match=r"'ours\.db\.x' is not one of the task's tables: they are ours\.db\.orders, lake\.db"
    ):
        fill(["{stage_table:ours.db.x}"], of)


@pytest.mark.parametrize(
    ("texts", "tables", "why"),
    [
        (
            ["{stage_table:a.b}"],
            [],
            """'a.b' is not one of the task's tables. Say what tells its intervals, like tables=[Table('a.b', """,
        ),
        (["{stage_table:a.b}"], ["a.c"], "they are a.c"),
        (["{stage_table:}"], ["a.c"], "'' is not one of"),
        (["--x"], ["a.b"], "the table 'a.b' is declared, but nothing gets its staged name: pass {stage_table:a.b}"),
        (["{stage_table:a.b}"], ["a.b", "{conf[x]}"], "the table '{conf[x]}' is declared, but"),
        (["{stage_table:{interval.strat}}"], ["a.b"], "unknown field 'interval.strat'"),
        (["{stage_table:a.b}"], ["a.b"], None),
        (["{stage_location:a.b}/x"], ["a.b"], None),
        (["{stage_location:a.b}/x"], [], "'a.b' is not one of the task's tables"),
        (["{stage_table:{conf[x]}.b}"], ["{conf[y]}.b"], None),
    ],
)
def test_tables_are_declared_and_used(texts: list[str], tables: list[str], why: str | None) -> None:
    if why is None:
        check(texts, tables)
        return
    with pytest.raises(BadArgument) as refused:
        check(texts, tables)
    assert why in str(refused.value)


def test_an_interval_has_at_most_so_many_partitions_as_a_run_may_stage() -> None:
    with pytest.raises(BadArgument, match="more than 1,000 partitions"):
        fill(["{stage_partitions:/d, t={interval.each:%Y%m%d%H%M}}"], DAY)
    assert len(fill(["{stage_partitions:/d, t={interval.each:%Y%m%d%H}}"], MONTH)[0].split()) == 2 + 29 * 24


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{stage_partitions:/data}", "needs a directory and the interval's partition of it, as in {stage_partitions:/"),
        ("{stage_partitions:}", "needs a directory"),
        ("{stage_partitions:, dt={interval.start}}", "needs a directory"),
        ("{stage_partitions:/data, }", "needs a directory"),
        ("{stage:/data/dt={interval.each:%Y-%m-%d}}", "interval.each is for the names of partitions"),
        ("--day={interval.each}", "interval.each is for the names of partitions"),
        ("{stage_partitions:/d, h={interval.each:%H}}", "interval.each: its formats %H name no single day"),
        ("{stage_partitions:/d, d={interval.each:%d.%b}}", "interval.each: its formats %d.%b has '%b'"),
        ("{stage_partitions:/d, {interval.each}/{interval.each_utc}}", "cannot name one partition together"),
        ("{stage_partitions:/d, d={interval.eech}}", "unknown field 'interval.eech'"),
    ],
)
def test_partitions_that_have_no_names_are_refused_when_they_are_defined(text: str, why: str) -> None:
    with pytest.raises(BadArgument) as refused:
        check([text])
    assert why in str(refused.value)


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


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        (
            '{"day": "{interval.start:%F}", "n": {conf[n]}, "deep": {"a": {}}}',
            '{"day": "2013-01-01", "n": 3, "deep": {"a": {}}}',
        ),
        (
            "out: {stage:/out/{conf[city]}/day={interval.start:%F}}\nargs: {n: 1, m: {}}",
            "out: /staged/out/JFK/day=2013-01-01\nargs: {n: 1, m: {}}",
        ),
        (
            '{{ ds }} {% if run.id %} ${HOME} {{conf[city]}} {x} { "run": {run.id} }',
            '{{ ds }} {% if run.id %} ${HOME} {{conf[city]}} {x} { "run": 7 }',
        ),
        ('{"rows":{conf[n]}}', '{"rows":3}'),
        ("password: {secret[KEY]}", "password: p{4}ss"),
        ("", ""),
    ],
)
def test_in_files_only_fields_are_filled_in(text: str, filled: str) -> None:
    assert fill_between(text, DAY) == filled
    check(fields_between(text))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: {conf[town]}", "in '{conf[town]}': conf has no key 'town'"),
        ("a: {interval.strat}", "did you mean interval.start?"),
        (
            "a: {interval.start:%Y\nb: }",
            "the field that begins with '{interval.start:%Y' has no closing brace in its line",
        ),
        ("{secret[NONE]}", "there is no secret 'NONE': give the pool a variable of that name"),
    ],
)
def test_what_a_file_lacks_is_named(text: str, why: str) -> None:
    with pytest.raises(BadArgument) as refused:
        fill_between(text, DAY)
    assert why in str(refused.value)


def test_a_secret_is_taken_whole_and_shows_in_no_path_and_no_error() -> None:
    assert fill(["--key={secret[KEY]} {secret.OTHER}"], DAY) == ["--key=p{4}ss x"]
    for text in (
        "{secret[KEY]:.2}",
        "{secret[KEY]!r}",
        "{secret[KEY]!s:.2}",
        "{secret}",
        "{secret[KEY][0]}",
        "{secret[NONE]}",
    ):
        with pytest.raises(BadArgument) as refused:
            fill([text], DAY)
        assert "p{4}" not in str(refused.value), text
    for text in ("{stage:/out/{secret[KEY]}}", "{staged:/out/{secret[KEY]}}"):
        with pytest.raises(BadArgument, match="a path that is staged cannot have a secret in it"):
            check([text])


@pytest.mark.parametrize(
    ("text", "pattern", "filled"),
    [
        ("/rules/{conf[city]}.json", "/rules/*.json", "/rules/JFK.json"),
        ("/r/{interval.start:%Y/%m}.json", "/r/*/*.json", "/r/2013/01.json"),
        ("/plain/%41,b", "/plain/%41,b", "/plain/%41,b"),
        ("s3a://b/{{x}}/{interval.start:%F}", "s3a://b/{x}/*", "s3a://b/{x}/2013-01-01"),
    ],
)
def test_paths_are_filled_in(text: str, pattern: str, filled: str) -> None:
    assert (outline(text), fill_path(text, DAY)) == (pattern, filled)


@pytest.mark.parametrize("value", ["../../etc", "..", "a/..", "%2e%2e", "a,b", "a#b", "a\nb"])
def test_the_conf_of_a_request_leads_a_path_nowhere_else(value: str) -> None:
    of = replace(DAY, conf={"name": value})
    with pytest.raises(BadArgument, match="a field may not add"):
        fill_path("/rules/{conf[name]}", of)
