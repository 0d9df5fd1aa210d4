"""Error attribution: the loss of the attempt's own Spark session, as opposed to other errors with
the same words.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from pyspark.errors import PySparkAssertionError
from pyspark.errors.exceptions.connect import SparkConnectException
from tests.unit.driver.test_driver_submit import launch

from retrofill.driver import session as sessions
from retrofill.driver.application import ConnectApplication
from retrofill.driver.config import Config
from retrofill.driver.session import UNKNOWN_SECONDS, ConnectSessions, timeout_seconds
from retrofill.outputs.tables.publication import leave_if_lost
from retrofill.spark.loss import is_of_server, line_of
from retrofill_tools.stack.ports import held_port


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConnectSessions]:
    """A session of a server that does not exist."""
    monkeypatch.setattr(sessions, "RETRIES", {"max_retries": 1, "initial_backoff": 1})
    with held_port() as port:
        made = ConnectSessions(Config(spark_remote=f"sc://127.0.0.1:{port}"), ConnectApplication(), launch())
        made.open()
        yield made
        made.release()


def raised(call: Any) -> BaseException:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def wrapped(call: Any) -> Any:
    def user() -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - as users do
            raise ValueError("my own words") from None

    return user


def test_a_server_that_never_answers_the_own_session_loses_it_whatever_the_user_makes_of_it(
    own: ConnectSessions,
) -> None:
    ask = own.use("t").range(1).count
    for call in (ask, wrapped(ask)):
        loss = own.lost(raised(call))
        assert loss is not None
        assert line_of(loss).startswith("its server does not answer: ")
        assert is_of_server(loss)


def test_the_same_words_and_the_same_class_from_elsewhere_are_the_users(own: ConnectSessions) -> None:
    other_launch = replace(launch(), attempt_id=26)
    other = ConnectSessions(Config(spark_remote=own._remote), ConnectApplication(), other_launch)
    other.open()
    channel = grpc.insecure_channel("127.0.0.1:9").unary_unary("/a/b")
    errors = [
        RuntimeError("503 SERVICE UNAVAILABLE [INVALID_HANDLE.SESSION_CLOSED] RETRIES_EXCEEDED"),
        SparkConnectException(errorClass="NO_ACTIVE_SESSION", messageParameters={}),
        raised(lambda: channel(b"", timeout=30)),
        raised(other.use("t").range(1).count),
    ]
    assert [own.lost(error) for error in errors] == [None] * len(errors)
    other.release()


def test_what_follows_the_users_own_stop_is_the_users(own: ConnectSessions) -> None:
    session = own.use("t")
    session.stop()
    assert own.lost(raised(session.range(1).count)) is None


def of(condition: str | None, **parameters: str) -> BaseException:
    made: BaseException = SparkConnectException(message="no", errorClass=condition, messageParameters=parameters)
    return made


@pytest.mark.parametrize(
    ("loss", "whole"),
    [
        (PySparkAssertionError("Received incorrect server side session identifier"), True),
        (of("INVALID_HANDLE.SESSION_CHANGED"), True),
        (of("INVALID_HANDLE.SESSION_NOT_FOUND"), True),
        (of("RESPONSE_ALREADY_RECEIVED", error_type="INVALID_HANDLE.SESSION_NOT_FOUND"), True),
        (of("NO_ACTIVE_SESSION"), True),
        (of("OPERATION_CANCELED"), True),
        (of(None), True),
        (of("INVALID_HANDLE.SESSION_CLOSED"), False),
        (of("RESPONSE_ALREADY_RECEIVED", error_type="INVALID_HANDLE.SESSION_CLOSED"), False),
    ],
)
@pytest.mark.parametrize("shares", [True, False])
def test_a_session_that_was_lost_with_its_server_is_told_from_one_that_was_closed(
    loss: BaseException, whole: bool, shares: bool
) -> None:
    """A driver of spark-submit shares its server with none."""
    said: list[bool] = []
    sessions: Any = SimpleNamespace(lost=lambda error: error, shares_server=shares)
    leave_if_lost(loss, sessions, lambda _, shared: said.append(shared))
    assert said == [whole and shares]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("60m", 3600),
        ("3600000ms", 3600),
        ("5000", 5),
        ("8s", 8),
        ("1h", 3600),
        ("-1", UNKNOWN_SECONDS),
        (None, UNKNOWN_SECONDS),
    ],
)
def test_a_sessions_time_as_spark_writes_it(text: str | None, fields: float) -> None:
    assert timeout_seconds(text) == fields


def test_a_loss_is_told_where_nothing_but_pyspark_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert line_of(ValueError("it is gone\nat x.Y")) == "it is gone"
