"""A driver is ready once Spark has answered it; otherwise it says why it did not."""

from __future__ import annotations

import socket

import pytest
from pyspark.sql.connect.session import SparkSession

from retrofill.driver import __main__ as driver
from retrofill.driver.application import ConnectApplication


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_server_that_does_not_answer_is_named_without_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "REACH_RETRIES", {**driver.REACH_RETRIES, "max_retries": 1})
    port, why = free_port(), list[str]()
    driver.reach(f"sc://127.0.0.1:{port}/;token=geheim", why.append, ConnectApplication())
    (line,) = why
    assert line.startswith(f"Spark at sc://127.0.0.1:{port}/")
    assert " does not answer: " in line
    assert "geheim" not in line and "\n" not in line
    assert SparkSession.getActiveSession() is None


def test_one_that_never_replies_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "REACH_SECONDS", 0.01)
    why: list[str] = []

    def never(*_: object) -> None:
        while not why:
            pass

    monkeypatch.setattr(driver, "_ask", never)
    driver.reach("sc://127.0.0.1:1", why.append, ConnectApplication())
    assert why == ["Spark at sc://127.0.0.1:1 does not answer: no reply within 0 s"]


def test_without_an_address_nothing_is_asked() -> None:
    driver.reach(None, pytest.fail, ConnectApplication())
