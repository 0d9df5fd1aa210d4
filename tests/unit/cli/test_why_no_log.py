"""A log that cannot be shown is explained in one line that says what to do."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from retrofill.errors import WrongUsage
from retrofill_core.attempt_logs import Position
from retrofill_core.settings import Settings
from retrofill_tools.cli.one_run import _print_log, bounds
from retrofill_tools.cli.output import print_facts, print_text
from retrofill_tools.client import attempts
from retrofill_tools.client.attempts import Attempt, NoLog, Unreachable, lines, why_no_log

BEGAN = datetime(2024, 1, 1, tzinfo=UTC)
ATTEMPT = Attempt(
    id=25,
    backfill_id="b",
    mode="each",
    position=0,
    runs=1,
    state="ended",
    outcome="lost",
    host="run-starter-a-12",
    host_id=1,
    claimed_at=BEGAN,
    began_at=BEGAN,
    ended_at=BEGAN,
    spark_app_id=None,
    spark_ui=None,
    reason=None,
)


@pytest.mark.parametrize(
    ("attempt", "age", "problem", "hosts", "said"),
    [
        ({}, 60.0, None, 0, "attempt 25 ran on run-starter-a-12, which is gone: look for 25.0.log in logs/attempts"),
        ({}, 60.0, None, 1, "attempt 25 ran on run-starter-a-12, which has no log of it"),
        (
            {},
            60.0,
            "http://127.0.0.1:9 does not answer: refused",
            1,
            "does not answer: refused; run this on that machine",
        ),
        ({}, 7200.0, None, 0, "was removed: logs are kept for 1:00:00 (RETROFILL_LOG_KEEP_SECONDS)"),
        ({"began_at": None}, None, None, 1, "its driver on run-starter-a-12 has not started (-f waits for it)"),
        ({"began_at": None, "reason": "no host"}, 60.0, None, 0, "it ended before it began (no host)"),
    ],
)
def test_why_there_is_no_log(
    attempt: dict[str, Any], age: float | None, problem: str | None, hosts: int, said: str
) -> None:
    line = why_no_log(replace(ATTEMPT, **attempt), age, problem, hosts=hosts, kept=3600.0)
    assert said in line
    assert "\n" not in line


def test_a_day_is_that_of_the_pipelines_zone() -> None:
    start, end = bounds("2024-03-10", "America/New_York")
    assert (start.isoformat(), end.isoformat()) == ("2024-03-10T00:00:00-05:00", "2024-03-11T00:00:00-04:00")
    moment, after = bounds("2024-03-10T05:00:00+00:00", "UTC")
    assert moment == datetime(2024, 3, 10, 5, tzinfo=UTC) < after


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_does_nothing_to_the_terminal_and_a_file_gets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "\x1b[31mred\x1b[0m\ttab \x1b]52;c;Z2VoZWlt\x07\x1b[2Jéß\x9b2J\x7f"
    for stream, expected in (
        (Screen(), "\x1b[31mred\x1b[0m\ttab ␛]52;c;Z2VoZWlt␇␛[2Jéß\ufffd2J\ufffd\n"),
        (io.StringIO(), line + "\n"),
    ):
        monkeypatch.setattr("sys.stdout", stream)
        _print_log(iter([line]))
        assert stream.getvalue() == expected


def test_texts_of_users_do_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_text("a ValueError: \x1b]0;title\x07\n\tnext line")
    print_facts({"reason": "\x1b[2J"})
    found = capsys.readouterr().out
    assert "a ValueError: ␛]0;title␇\n" in found
    assert "␛[2J" in found and "\x1b" not in found


@pytest.mark.parametrize("text", ["9999-12-31", "0001-01-01", "9999-12-31T23:59:59.999999+00:00"])
def test_a_date_at_the_edge_of_the_calendar_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage, match="is outside the calendar"):
        bounds(text, "Asia/Tokyo")


class Restarting:
    """A run-starter's page, which is elsewhere after a restart."""

    def __init__(self, gone: type[OSError] | None) -> None:
        self.gone, self.there = gone, True

    def read(self, at: Position) -> tuple[bytes, Position] | None:
        if self.there:
            return (b"first\n", Position(0, 6)) if at == Position() else (b"", at)
        if self.gone is None:
            return None
        raise self.gone("it does not answer")


@pytest.mark.parametrize("gone", [None, Unreachable])
def test_a_log_is_found_again_after_its_host_restarted(
    monkeypatch: pytest.MonkeyPatch, gone: type[OSError] | None
) -> None:
    before, after = Restarting(gone), Restarting(None)
    after.read = lambda at: (b"last\n", Position(0, 11)) if at == Position(0, 6) else (b"", at)  # type: ignore[method-assign]
    answers: list[Restarting | NoLog] = [before, NoLog("it is starting", may_come=True), after]
    places = iter(answers)

    def find(*_: object) -> Restarting:
        place = next(places)
        if isinstance(place, NoLog):
            raise place
        return place

    monkeypatch.setattr(attempts, "_find", find)
    log = attempts.find_log(Settings(), None, ATTEMPT)  # type: ignore[arg-type]
    ends = iter([True, True, False])

    def goes_on() -> bool:
        before.there = False
        return next(ends)

    assert list(lines(log, goes_on)) == ["first", "last"]


def test_a_log_that_is_gone_for_good_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Restarting(Unreachable)
    places = iter([before])

    def find(*_: object) -> Restarting:
        for place in places:
            return place
        raise NoLog("attempt 25 ran on a, which is gone", may_come=False)

    monkeypatch.setattr(attempts, "_find", find)
    log = attempts.find_log(Settings(), None, ATTEMPT)  # type: ignore[arg-type]

    def goes_on() -> bool:
        before.there = False
        return False

    found = lines(log, goes_on)
    assert next(found) == "first"
    with pytest.raises(Unreachable, match="which is gone"):
        next(found)
