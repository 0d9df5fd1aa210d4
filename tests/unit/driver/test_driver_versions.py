"""Differences between Spark's versions."""

from __future__ import annotations

import gc
import uuid
import weakref

import pytest
from pyspark.sql.connect.session import SparkSession

from retrofill.driver.session import connect
from retrofill.driver.versions import close_by_stop_only
from retrofill.spark.loss import witness


def test_the_garbage_collector_closes_no_session_where_it_could_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "__del__", SparkSession.__del__)  # restored at the end
    close_by_stop_only()
    # It connects at its first request.
    session = SparkSession("sc://127.0.0.1:1")
    client = session.client
    del session
    gc.collect()
    assert not client.is_closed
    client.close()  # or it would be called at exit


def test_a_client_ends_with_its_session() -> None:
    session = connect("sc://127.0.0.1:1", str(uuid.uuid4()), witness(), {}, lambda _: None)
    client = weakref.ref(session.client)
    session.release_session_on_close = False
    session.stop()
    del session
    gc.collect()
    assert client() is None
