"""Which pools are served, with what, and why runs of the others wait."""

from __future__ import annotations

from typing import Any

import pytest

from retrofill_tools.client import pools
from retrofill_tools.client.pools import summary, without_drivers


def host(pool: str = "default", **more: Any) -> dict[str, Any]:
    about = {
        "name": "h",
        "pool": pool,
        "alive": True,
        "submits": True,
        "note": None,
        "python": "3.11.2",
        "spark": "4.1.4",
    }
    return {**about, "busy": 0, "warm": 0, "cold": 0, **more}


def test_each_pool_that_is_served_or_used_is_listed() -> None:
    there = [
        host(busy=2, warm=1),
        host(warm=1, cold=1, python="3.12.1"),
        host("gpu", cold=2, spark=None),
        host("old", alive=False, busy=1),
    ]
    found = summary(there, {"default": 3, "nobody": 1})  # type: ignore[arg-type]
    assert [tuple(each.values()) for each in found] == [
        ("default", 2, 5, 2, ["3.11.2", "3.12.1"], ["4.1.4"], 3),
        ("gpu", 1, 2, 0, ["3.11.2"], [], 0),
        ("nobody", 0, 0, 0, [], [], 1),
    ]


def why(monkeypatch: pytest.MonkeyPatch, there: list[Any], **definition: str) -> str | None:
    monkeypatch.setattr(pools, "hosts", lambda conn: there)
    row: Any = {"state": "running", "definition": definition, "ended_at": None, "review": False}
    return without_drivers(None, row, {"queued": 1})  # type: ignore[arg-type]


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
