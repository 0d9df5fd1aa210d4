"""Services are woken after commits, and idle sessions are ended, whichever role logs in."""

from __future__ import annotations

import threading

import psycopg
import pytest
from tests.support.installation import Installation
from tests.support.statements import recorded

from retrofill_core.bus.notifications import Announcer, Listener, install
from retrofill_core.bus.transaction import shard_transaction
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.topics import RUN_STARTER, Topic
from retrofill_core.store.engine import SERVICE_LIMITS, make_engine, missing_limits
from retrofill_core.store.outbox import channel
from retrofill_core.store.runs import SLOT_CHANNEL


def test_a_commit_wakes_others_without_a_notify_in_its_transaction(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transactions with NOTIFY commit one at a time in the whole cluster, so a shard's transaction
    must not contain one.
    """
    monkeypatch.setattr("retrofill_core.bus.notifications._installed", None)
    dsn = installation.settings.dsn_of(RUN_STARTER.name)
    here: list[tuple[str, str]] = []
    there: list[tuple[str, str]] = []
    listening, woken, both = threading.Event(), threading.Event(), {channel(RUN_STARTER.package), SLOT_CHANNEL}

    def heard(name: str, payload: str) -> None:
        there.append((name, payload))
        listening.set()
        if both <= {name for name, _ in there}:
            woken.set()

    announcer = Announcer(dsn, "test", lambda name, payload: here.append((name, payload)))
    other = Listener(dsn, "other", sorted(both), heard)
    own = Listener(dsn, "own", sorted(both), on_notification=lambda *_: None, is_own=lambda pid: pid == announcer.pid)
    for thread in (announcer, other, own):
        thread.start()
    install(announcer)
    assert listening.wait(20)
    engine = make_engine(dsn, "test", limited=True)
    message = BackfillRequested.model_validate({"pipeline": "p", "from": "2020-01-01", "to": "2020-01-02"})
    try:
        with recorded(engine) as found, shard_transaction(engine, RUN_STARTER, 0, 0, 900_000) as tx:
            tx.emit(Topic.RUN_EVENTS, "k", message)
            tx.notify(SLOT_CHANNEL, [7])
        assert not [each for each in found.shapes() if "notify" in each.lower()]
        assert here == [(channel(RUN_STARTER.package), ""), (SLOT_CHANNEL, "7")]
        assert woken.wait(20)
        assert (SLOT_CHANNEL, "7") in there
    finally:
        engine.dispose()
        for stops in (announcer, other, own):
            stops.stop()


def test_a_session_of_a_service_has_its_limits_whichever_role_it_is(installation: Installation) -> None:
    dsn = installation.settings.dsn_of("owner")
    plain, limited = make_engine(dsn, "test"), make_engine(dsn, "test", limited=True)
    try:
        with plain.connect() as conn:
            assert missing_limits(conn) == list(SERVICE_LIMITS)
        with limited.connect() as conn:
            assert missing_limits(conn) == []
    finally:
        plain.dispose()
        limited.dispose()


def test_the_options_of_a_dsn_stay(installation: Installation) -> None:
    dsn = psycopg.conninfo.make_conninfo(installation.settings.dsn_of("owner"), options="-c work_mem=7MB")
    engine = make_engine(dsn, "test", limited=True)
    try:
        with engine.connect() as conn:
            assert conn.exec_driver_sql("SHOW work_mem").scalar_one() == "7MB"
            assert conn.exec_driver_sql("SHOW search_path").scalar_one() == "pg_catalog"
    finally:
        engine.dispose()
