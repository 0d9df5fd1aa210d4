"""A fault that cannot be played is a failure: none is skipped, or counted without its victim."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from tests.chaos import faults, scenarios, several
from tests.chaos.stage import Stage


class Nothing:
    """An installation whose Postgres is away, and a crew without a replica."""

    def of(self, name: str) -> list[Any]:
        return []

    def scale(self, name: str, count: int) -> None:
        pass

    def replace(self, name: str) -> None:
        pass

    @contextmanager
    def session(self) -> Iterator[None]:
        raise psycopg.OperationalError("down")
        yield


def stage() -> Stage:
    """A stage on which no fault can be played."""
    made = Stage(*[None] * 7)  # type: ignore[arg-type] # faults use no more than the following
    made.made = made.crew = Nothing()  # type: ignore[assignment]
    made.chance = random.Random(1)
    return made


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for."""
    for module in (faults, several):
        monkeypatch.setattr(module, "REACH_SECONDS", 0.0)
    monkeypatch.setattr(Stage, "wait", lambda self, seconds: None)
    monkeypatch.setattr(Stage, "recovered", lambda *_: 0.0)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (several.frozen_service, "there is a replica of"),
        (several.killed_services, "there is a replica of"),
        (several.frozen_drivers, "there are drivers"),
        (several.open_transaction, "another transaction has its locks"),
    ],
)
def test_one_of_several_faults_is_not_skipped(fault: several.Fault, reason: str) -> None:
    made = stage()
    with pytest.raises(AssertionError, match=reason):
        several.group(made, [fault])
    assert not made.faults


@pytest.mark.parametrize("scenario", [scenarios.kills, scenarios.random_freezes, scenarios.rolling])
def test_a_scenario_without_its_victims_fails(scenario: Callable[[Stage], None]) -> None:
    made = stage()
    with pytest.raises(AssertionError, match="there is a replica of"):
        scenario(made)
    assert not made.faults


def test_what_ends_others_begins_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a lock or a driver may be gone before its own fault."""
    begun = []

    def noted(name: str) -> several.Fault:
        @contextmanager
        def fault(_: Stage) -> Iterator[None]:
            begun.append(name)
            yield

        return fault

    played = {each.__name__: noted(each.__name__) for each in several.FAULTS}
    monkeypatch.setattr(several, "FAULTS", [*played.values()])
    several.group(stage(), [played["killed_postgres"], played["open_transaction"], played["frozen_drivers"]])
    assert begun == ["open_transaction", "frozen_drivers", "killed_postgres"]
