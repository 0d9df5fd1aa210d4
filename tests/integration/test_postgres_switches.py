"""Another Postgres takes over while services work: they continue by themselves, unless published events were lost."""

from __future__ import annotations

import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.chaos.servers import POSTGRES, OwnServers
from tests.integration.test_postgres_went_back import published_twice, recover, starts
from tests.support.definitions import daily
from tests.support.installation import Installation, until
from tests.support.replica import Replica
from tests.support.switching import Server, on_servers, servers_of

from retrofill_core.contract.topics import Topic
from retrofill_core.store.history import SPAN

SERVICES = ("backfill-planner", "instant-starter", "deadline-watcher", "callback-runner")
DAYS = 60


@contextmanager
def cluster(count: int) -> Iterator[tuple[Installation, list[Server]]]:
    """An installation on the first of so many Postgres servers; the others are not made yet."""
    with tempfile.TemporaryDirectory(prefix="retrofill-tests-") as home:
        own = OwnServers(Path(home))
        try:
            own.start()
            made = own.installation()
            identity = own.layout.identity()
            assert identity is not None
            own.stop_part(POSTGRES)
            with servers_of(made, own.layout.data(POSTGRES), Path(home), identity, count) as servers:
                try:
                    yield made, servers
                finally:
                    made.close()
        finally:
            own.stop()


def start_all(made: Installation) -> list[Replica]:
    return [made.start(name, INSTANT_SECONDS="0.1") for name in SERVICES]


def begin(made: Installation) -> str:
    """A backfill of which some runs have succeeded."""
    made.apply(daily("p", max_active_runs=3))
    id = made.request("p", "2020-01-01", "2020-02-29", max_active_runs=3)
    wait_succeeded(made, id, 5)
    return id


def wait_succeeded(made: Installation, id: str, count: int) -> None:
    until(lambda: made.runs_by_state(id).get("succeeded", 0) >= count, f"{count} runs have succeeded")


def assert_each_once(made: Installation, id: str, replicas: list[Replica]) -> None:
    """All runs succeed, each was executed once, each event was published once, and no service ended."""
    made.wait_state(id, "succeeded", seconds=120)
    made.wait_published()
    assert made.runs_by_state(id) == {"succeeded": DAYS}
    events = [event for topic in Topic for event in made.events(topic)]
    ids = Counter(event.headers["ce_id"] for event in events if "ce_id" in event.headers)
    assert [ce_id for ce_id, n in ids.items() if n > 1] == []
    for kind in ("RunStarted", "RunSucceeded"):
        runs = Counter(event.body["run_id"] for event in events if event.body.get("type") == kind)
        assert len(runs) == DAYS and set(runs.values()) == {1}, (kind, runs)
    assert made.events(Topic.DEAD_LETTERS) == []
    assert [replica.said() for replica in replicas if replica.process.poll() is not None] == []


def generation(made: Installation) -> int:
    """That of all shards and relays, which is the same."""
    names = [f"{package}_{kind}" for package in PACKAGES for kind in ("shard", "relay")]
    epochs = " UNION ".join(f"SELECT epoch / {SPAN} AS generation FROM {name}" for name in names)
    return int(made.value(epochs))


PACKAGES = ("backfill_planner", "run_starter", "deadline_watcher", "callback_runner")


@pytest.mark.embedded
@pytest.mark.long
def test_switches_in_a_row_without_loss_and_back_are_no_outage() -> None:
    with cluster(3) as (made, (first, second, third)):
        second.follow(first, "second")
        first.be_synchronous_to("second")
        replicas = start_all(made)
        id = begin(made)
        # Unplanned: what was acknowledged is on the synchronous standby.
        first.end(signal.SIGQUIT)
        second.promote()
        wait_succeeded(made, id, 15)
        third.follow(second, "third")
        second.end()
        third.promote()
        # While they are still connecting.
        first.follow(third, "first")
        third.end()
        first.promote()
        assert_each_once(made, id, replicas)
        # All may have been done on the third: the last switch is noticed by who connects next.
        until(lambda: made.value("SELECT timeline FROM installation") == 4, "the last one is recorded")
        assert generation(made) in (2, 3)
        # Idle services notice as well.
        second.follow(first, "second")
        first.end()
        second.promote()
        again = made.request("p", "2021-01-01", "2021-01-02")
        made.wait_state(again, "succeeded")
        assert made.value("SELECT min(id) FROM run WHERE backfill_id = %s", again) > 3 * SPAN


@pytest.mark.embedded
@pytest.mark.long
def test_a_published_event_that_the_new_primary_lacks_stops_the_services() -> None:
    with cluster(2) as (made, (first, second)):
        second.follow(first, "second")
        replicas = start_all(made)
        id = begin(made)
        second.end(signal.SIGQUIT)
        wait_succeeded(made, id, made.runs_by_state(id)["succeeded"] + 10)
        first.end(signal.SIGQUIT)
        started = Counter(e.body["run_id"] for e in made.events(Topic.RUN_EVENTS) if e.body["type"] == "RunSucceeded")
        second.start()
        second.promote()
        for replica in replicas:
            assert replica.process.wait(120) == 1, replica.said()
            last = replica.said().splitlines()[-1]
            assert last.count("Kafka has") == 1 and "run 'retrofill recover'" in last, replica.said()
        succeeded = Counter(e.body["run_id"] for e in made.events(Topic.RUN_EVENTS) if e.body["type"] == "RunSucceeded")
        assert succeeded == started, "nothing was done meanwhile"
        done = recover(made, "--yes")
        assert (done.returncode, done.stderr) == (0, "")
        start_all(made)
        made.wait_state(id, "succeeded", seconds=120)
        assert made.runs_by_state(id) == {"succeeded": DAYS}
        assert [key for key, n in starts(made).items() if n > 1] == []
        assert published_twice(made) == []


@pytest.mark.embedded
@pytest.mark.long
def test_an_old_primary_that_comes_back_is_not_worked_on() -> None:
    with cluster(2) as (made, (first, second)):
        second.follow(first, "second")
        replicas = start_all(made)
        id = begin(made)
        first.end()
        second.promote()
        until(lambda: all(f'"epoch": {SPAN}'[:-1] in each.said() for each in replicas), "they work on the new one")
        first.start()
        late = made.start("backfill-planner", wait=False)
        assert late.process.wait(60) == 1
        assert "old primary" in late.said().splitlines()[-1]
        # The old one is the first that a new connection finds.
        second.value(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )
        until(lambda: all("old primary on timeline 1" in each.said() for each in replicas), "they refuse it")
        first.end(signal.SIGQUIT)
        assert_each_once(made, id, replicas)


@pytest.mark.embedded
@pytest.mark.long
def test_an_old_primary_that_stays_writable_is_left_by_who_never_saw_the_new_one() -> None:
    """One service that works on the new one is enough, though no relay has anything to publish."""
    with cluster(2) as (made, (first, second)):
        replicas = start_all(made)
        made.apply(daily("p"))
        made.wait_published()
        second.follow(first, "second")
        second.promote()
        made.settings = on_servers(made.settings, [second])
        new = made.start("deadline-watcher")
        for replica in replicas:
            assert replica.process.wait(60) == 1, replica.said()
            assert "it is an old primary that must be stopped" in replica.said().splitlines()[-1]
        assert [server.value("SELECT timeline FROM retrofill.installation") for server in (first, second)] == [1, 2]
        assert new.process.poll() is None


@pytest.mark.embedded
@pytest.mark.long
def test_a_planned_switch_while_runs_are_in_flight_is_no_outage() -> None:
    with cluster(2) as (made, (first, second)):
        second.follow(first, "second")
        replicas = start_all(made)
        id = begin(made)
        first.end()
        second.promote()
        assert_each_once(made, id, replicas)
        assert generation(made) == 1
