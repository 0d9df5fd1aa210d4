"""Closing the session of an earlier attempt, whose work Spark is still ending."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException

from retrofill.driver import session


class Client:
    """``errors``: what each request to release raises, until there are no more."""

    def __init__(self, *errors: Exception) -> None:
        self._errors: Iterator[Exception] = iter(errors)
        self.requests = 0

    def release_session(self) -> None:
        self.requests += 1
        for error in self._errors:
            raise error


class Refusal(PySparkException):
    """As pyspark's errors tell their condition."""

    def __init__(self, condition: str | None) -> None:
        super().__init__("refused")
        self.condition = condition

    def getCondition(self) -> str | None:
        return self.condition


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "RELEASE_AGAIN_SECONDS", 0.0)


@pytest.mark.parametrize("condition", ["SPARK_CONNECT_ILLEGAL_STATE.STATE_CONSISTENCY_SESSION", None])
def test_it_is_released_again_however_spark_refuses(condition: str | None) -> None:
    client = Client(Refusal(condition), Refusal(condition))
    session.release_on_server(client)
    assert client.requests == 3


def test_one_that_is_closed_is_not_asked_again() -> None:
    client = Client(Refusal("INVALID_HANDLE.SESSION_CLOSED"))
    with session.closed_is_fine():
        session.release_on_server(client)
    assert client.requests == 1


def test_a_refusal_that_lasts_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "RELEASE_SECONDS", -1.0)
    with pytest.raises(Refusal):
        session.release_on_server(Client(Refusal(None)))
