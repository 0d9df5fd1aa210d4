"""A Postgres that was restored from an older copy, beside a Kafka that went on: noticed, and gone on from."""

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
from tests.support.installation import Installation, Replica, daily, until

from retrofill.contract.topics import Topic

DAYS = 40
SERVICES = ("backfill-planner", "instant-starter")


class Own(OwnServers):
    """Servers whose Postgres may be stopped, copied and restored."""

    @property
    def data(self) -> Path:
        """The data folder of Postgres."""
        return self.layout.data(POSTGRES)

    def stop_postgres(self) -> None:
        """Stop it as an operator does."""
        self._supervisor().stop_parts([POSTGRES])

    def start_postgres(self) -> None:
        """Start it and wait until it answers."""
        self._supervisor().start_part(POSTGRES)
        self.wait_answers(POSTGRES)


@pytest.fixture
def own() -> Iterator[tuple[Own, Installation]]:
    """Servers of this test alone, and an installation on them."""
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
    """How often each attempt was told to have begun."""
    events = [event.body for event in made.events(Topic.RUN_EVENTS) if event.body["type"] == "RunStarted"]
    return Counter((body["run_id"], body["attempt"]) for body in events)


def refuse_to_work(made: Installation, sign: str) -> None:
    """Every service ends at once, with one line that says what it found and what to type."""
    for replica in start_all(made, wait=False):
        assert replica.process.wait(60) == 1, replica.said()
        last = replica.said().splitlines()[-1]
        assert sign in last and "type 'retrofill recover'" in last, replica.said()


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
        # A cold copy is on the same timeline: what Kafka has gives it away.
        refuse_to_work(made, "it was restored from an older copy")
        asked = recover(made)
        assert (asked.returncode, asked.stderr.count("\n")) == (1, 1) and "nothing was changed" in asked.stderr
        done = recover(made, "--yes")
        assert (done.returncode, done.stderr) == (0, "")
        assert "Postgres knows of" in done.stdout and f"recovered (generation {again})" in done.stdout
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
    """A fail-over: Postgres is away for a moment and then another one, which may have lost the last commits."""
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
        assert "Postgres is on timeline 2, it was on 1" in replica.said().splitlines()[-1]
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
        # As the copy had it before the event was published; and one that never was.
        conn.execute("UPDATE retrofill.backfill_planner_relay SET batch = batch - 1")
        for value, each in ((event.value, headers), (b"{}", Jsonb([["ce_id", "never published"]]))):
            conn.execute(
                "INSERT INTO retrofill.backfill_planner_outbox (topic, key, value, headers) VALUES (%s, %s, %s, %s)",
                [str(Topic.PIPELINE_EVENTS), event.key.encode(), value, each],
            )
    done = recover(installation, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 that waited here were published already" in done.stdout
    planner = installation.start("backfill-planner")
    until(
        lambda: installation.value("SELECT count(*) FROM backfill_planner_outbox") == 0, "it is published", planner.said
    )
    ids = [each.headers["ce_id"] for each in installation.events(Topic.PIPELINE_EVENTS)]
    assert ids == [event.headers["ce_id"], "never published"]
