"""Postgres was restored from an older copy while Kafka moved on: services detect it, and
``retrofill recover`` resolves it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb
from tests.chaos.servers import POSTGRES, OwnServers
from tests.support.definitions import daily
from tests.support.installation import Installation, until
from tests.support.replica import Replica

from retrofill.contract.topics import Topic

DAYS = 40
SERVICES = ("backfill-planner", "instant-starter")


class Own(OwnServers):
    """Servers whose Postgres can be stopped, copied and restored."""

    @property
    def data(self) -> Path:
        """Postgres's data directory."""
        return self.layout.data(POSTGRES)

    def stop_postgres(self) -> None:
        """Stop it as an operator does."""
        self._supervisor().stop_parts([POSTGRES])

    def start_postgres(self) -> None:
        """Start it and wait until it accepts connections."""
        self._supervisor().start_part(POSTGRES)
        self.wait_answers(POSTGRES)


@pytest.fixture
def own() -> Iterator[tuple[Own, Installation]]:
    """Dedicated servers with one installation."""
    with tempfile.TemporaryDirectory(prefix="retrofill-tests-") as home:
        servers = Own(Path(home))
        try:
            servers.start()
            made = servers.installation()
            try:
                yield servers, made
            finally:
                made.close()
        finally:
            servers.stop()


def start_all(made: Installation, *, wait: bool = True) -> list[Replica]:
    return [made.start(name, wait=wait, INSTANT_SECONDS="0.2") for name in SERVICES]


def succeeded(made: Installation, id: str) -> int:
    return made.runs_by_state(id).get("succeeded", 0)


def recover(made: Installation, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from retrofill.cli.main import run; run()", "recover", *options],
        env={**os.environ, **made.environment()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def starts(made: Installation) -> Counter[tuple[int, int]]:
    """The number of ``RunStarted`` events of each attempt."""
    events = [event.body for event in made.events(Topic.RUN_EVENTS) if event.body["type"] == "RunStarted"]
    return Counter((body["run_id"], body["attempt"]) for body in events)


def refuse_to_work(made: Installation, sign: str) -> None:
    """Assert that every service exits at once, with one line that names the finding and the command
    to type.
    """
    for replica in start_all(made, wait=False):
        assert replica.process.wait(60) == 1, replica.said()
        last = replica.said().splitlines()[-1]
        assert sign in last and "run 'retrofill recover'" in last, replica.said()


@pytest.mark.embedded
@pytest.mark.long
def test_a_restored_copy_is_noticed_and_gone_on_from(own: tuple[Own, Installation], tmp_path: Path) -> None:
    servers, made = own
    start_all(made)
    made.apply(daily("p", max_active_runs=3))
    id = made.request("p", "2020-01-01", "2020-02-09", max_active_runs=3)
    until(lambda: succeeded(made, id) >= 5, "some runs are done")
    servers.stop_postgres()
    shutil.copytree(servers.data, tmp_path / "copy", symlinks=True)
    servers.start_postgres()
    until(lambda: succeeded(made, id) >= 20, "the backfill goes on")
    lost = made.request("p", "2021-01-01", "2021-01-03")
    made.outcome(lost)
    for replica in made.replicas:
        replica.kill()
    before = starts(made)
    for again in (1, 2):
        servers.stop_postgres()
        shutil.rmtree(servers.data)
        shutil.copytree(tmp_path / "copy", servers.data, symlinks=True)
        servers.start_postgres()
        # A cold copy is on the same timeline; only Kafka's newer state reveals it.
        refuse_to_work(made, "it was restored from an older copy")
        asked = recover(made)
        assert (asked.returncode, asked.stderr.count("\n")) == (1, 1) and "nothing was changed" in asked.stderr
        done = recover(made, "--yes")
        assert (done.returncode, done.stderr) == (0, "")
        assert "Postgres only" in done.stdout and f"recovered (generation {again})" in done.stdout
        replicas = start_all(made)
        if again == 1:
            until(lambda: sum(starts(made).values()) >= sum(before.values()) + 5, "runs start again")
            for replica in replicas:
                replica.kill()
    for each in (id, lost):
        made.wait_state(each, "succeeded")
    counts = starts(made)
    assert [key for key, n in counts.items() if n > 1] == []
    assert sum(counts.values()) > sum(before.values()) + DAYS - 20
    assert made.runs_by_state(id) == {"succeeded": DAYS}
    assert made.runs_by_state(lost) == {"succeeded": 3}
    ids = Counter(e.headers["ce_id"] for topic in Topic for e in made.events(topic) if "ce_id" in e.headers)
    assert [ce_id for ce_id, n in ids.items() if n > 1] == []
    assert made.events(Topic.DEAD_LETTERS) == []


@pytest.mark.embedded
def test_another_timeline_ends_services_at_work(own: tuple[Own, Installation]) -> None:
    """A failover: Postgres is briefly away and returns on another timeline, which may lack the last
    commits.
    """
    servers, made = own
    replicas = start_all(made)
    made.apply(daily("p"))
    id = made.request("p", "2020-01-01", "2020-01-20")
    until(lambda: succeeded(made, id) >= 3, "some runs are done")
    servers.stop_postgres()
    (servers.data / "standby.signal").touch()
    servers.start_postgres()
    made.query("SELECT pg_promote()")
    for replica in replicas:
        assert replica.process.wait(60) == 1, replica.said()
        assert "Postgres is on timeline 2, but 1 is recorded" in replica.said().splitlines()[-1]
    assert recover(made, "--yes").returncode == 0
    start_all(made)
    made.wait_state(id, "succeeded")
    assert [key for key, n in starts(made).items() if n > 1] == []
    assert made.runs_by_state(id) == {"succeeded": 20}


def test_events_of_the_copy_that_kafka_has_are_not_published_again(installation: Installation) -> None:
    planner = installation.start("backfill-planner")
    installation.apply(daily("p"))
    planner.stop()
    (event,) = installation.events(Topic.PIPELINE_EVENTS)
    headers = Jsonb([[*each] for each in event.headers.items()])
    with psycopg.connect(installation.settings.dsn_of("owner")) as conn:
        # One event as the copy had it before publication, and one that was never published.
        conn.execute("UPDATE retrofill.backfill_planner_relay SET batch = batch - 1")
        for value, each in ((event.value, headers), (b"{}", Jsonb([["ce_id", "never published"]]))):
            conn.execute(
                "INSERT INTO retrofill.backfill_planner_outbox (topic, key, value, headers) VALUES (%s, %s, %s, %s)",
                [str(Topic.PIPELINE_EVENTS), event.key.encode(), value, each],
            )
    done = recover(installation, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert "pending events dropped as already published: 1\n" in done.stdout
    planner = installation.start("backfill-planner")
    until(
        lambda: installation.value("SELECT count(*) FROM backfill_planner_outbox") == 0, "it is published", planner.said
    )
    ids = [each.headers["ce_id"] for each in installation.events(Topic.PIPELINE_EVENTS)]
    assert ids == [event.headers["ce_id"], "never published"]
