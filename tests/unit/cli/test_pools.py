"""Pools that are served, with what, and why runs of the others wait."""

from __future__ import annotations

from dataclasses import astuple, replace
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Connection
from tests.support.offline import acting_as
from tests.support.rows import a_stored_backfill

from retrofill_tools.client import backfills
from retrofill_tools.client.hosts import Host, pools_of
from retrofill_tools.client.pipelines import StoredDefinition

FREE = Host(1, "h", "default", datetime(2024, 1, 1), True, None, "3.11.2", "4.1.4", alive=True, busy=0, warm=0, cold=0)


def host(pool: str = "default", **more: Any) -> Host:
    return replace(FREE, pool=pool, **more)


def test_each_pool_that_is_served_or_used_is_listed() -> None:
    there = [
        host(busy=2, warm=1),
        host(warm=1, cold=1, python="3.12.1"),
        host("gpu", cold=2, spark=None),
        host("old", alive=False, busy=1),
    ]
    found = pools_of(there, {"default": 3, "nobody": 1}, {"gpu": 2})
    assert [astuple(each) for each in found] == [
        ("default", 2, 5, 2, ["3.11.2", "3.12.1"], ["4.1.4"], 3, 0, 10),
        ("gpu", 1, 2, 0, ["3.11.2"], [], 0, 2, 10),
        ("nobody", 0, 0, 0, [], [], 1, 0, 10),
    ]


def why(monkeypatch: pytest.MonkeyPatch, there: list[Any], **definition: str) -> str | None:
    monkeypatch.setattr(backfills, "find_hosts", lambda conn: there)
    of = a_stored_backfill(definition=StoredDefinition(definition))
    return backfills.without_drivers(acting_as(Connection, None), of, {"queued": 1})


def test_why_runs_wait_is_about_their_own_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    free, cold, gone = host(warm=1), host("gpu", note="no GPU"), host("gpu", alive=False, warm=1)
    assert "no run-starter is alive" in (why(monkeypatch, [gone]) or "")
    assert (why(monkeypatch, [free, gone], pool="gpu") or "").startswith(
        "no run-starter serves the pool gpu: start one"
    )
    assert why(monkeypatch, [free, cold], pool="gpu") == "no driver is ready: h: no GPU"
    assert why(monkeypatch, [free, cold], pool="gpu", executor="spark-submit") is None
    # Stored by an earlier release, it names none.
    assert why(monkeypatch, [free, cold]) is None
