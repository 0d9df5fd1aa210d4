"""Upgrades: the schema grows while one release is running, which keeps working, and the next one takes over.

Everything is real except Spark. The next release is this one with another migration.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from tests.support.installation import ROOT, Installation, until
from tests.support.releases import REVISION_AFTER, command, ended, next_release, schema_of
from tests.support.replica import Replica

from retrofill_core.contract.topics import SERVICES, Topic
from retrofill_core.domain.pipeline import CodeLocation, PipelineDefinition, TaskDefinition
from retrofill_core.store.tables import REVISION

# Each run of a gated backfill waits at the gate until it is opened.
FLOW = """
from pathlib import Path
from retrofill import Pipeline

flow = Pipeline("flow", schedule="@daily", start="2013-01-01")

@flow.task
def write(run):
    if "gate" in run.conf:
        open(run.conf["gate"]).close()
"""
WAITING = f"this release needs {REVISION_AFTER}: run this release's 'retrofill init'"


def waits(name: str, replica: Replica) -> None:
    """It says which schema it waits for."""
    until(lambda: WAITING in replica.said(), f"the next {name} waits")
    line = json.loads(next(line for line in replica.said().splitlines() if WAITING in line))
    assert line["event"] == "waiting_for_init"


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The next release's code."""
    return next_release(tmp_path_factory.mktemp("after"))


@pytest.fixture
def flow(tmp_path: Path) -> PipelineDefinition:
    (tmp_path / "flow.py").write_text(FLOW)
    return PipelineDefinition(
        name="flow",
        schedule="@daily",
        tasks=(TaskDefinition(name="write"),),
        code=CodeLocation(file=str(tmp_path / "flow.py"), attribute="flow"),
    )


def all_services(made: Installation, tree: Path = ROOT, *, wait: bool = True) -> dict[str, Replica]:
    """Start one replica of each service. Drivers run without Spark."""
    modules = {name: "light-starter" if name == "run-starter" else name for name in SERVICES}
    return {name: made.start(module, wait=wait, tree=tree) for name, module in modules.items()}


def gated(made: Installation, gate: Path, month: int) -> str:
    """Create a three-day backfill whose runs wait at the gate. Returns once the first run has
    started.
    """
    os.mkfifo(gate)
    days = (f"2013-{month:02}-01", f"2013-{month:02}-03")
    id = made.request("flow", *days, max_active_runs=1, conf={"gate": str(gate)})
    until(lambda: made.runs_by_state(id).get("running") == 1, f"a run of {id} has begun")
    return id


def opened_until(made: Installation, id: str, gate: Path, over: Callable[[], bool], what: str) -> None:
    """Open the gate for one run of a backfill at a time until ``over``."""

    def opened() -> bool:
        # Opening fails while no run waits at the gate.
        with suppress(OSError):
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
        return over()

    until(opened, f"{id} {what}", lambda: str(made.runs_by_state(id)))


def finish(made: Installation, id: str, gate: Path) -> None:
    """Open the gate until the backfill has succeeded."""
    state = "SELECT state FROM backfill WHERE id = %s"
    opened_until(made, id, gate, lambda: made.value(state, id) == "succeeded", "succeeded")


def lost_attempts(made: Installation) -> list[str]:
    return [e.body["run_id"] for e in made.events(Topic.RUN_EVENTS) if e.body["type"] == "RunAttemptLost"]


@pytest.mark.long
def test_a_release_goes_on_while_the_schema_grows_and_the_next_one_takes_over_its_backfills(
    installation: Installation, after: Path, flow: PipelineDefinition, tmp_path: Path
) -> None:
    old = all_services(installation)
    installation.apply(flow)
    during = gated(installation, tmp_path / "during", 1)
    new = all_services(installation, after, wait=False)
    for name, replica in new.items():
        waits(name, replica)
    assert not [name for name, replica in new.items() if replica.process.poll() is not None or is_ready(replica)]

    # In the middle of a run: this run, later runs and new backfills all work.
    assert ended(command(installation, "init", tree=after)) == (0, "")
    assert schema_of(installation) == REVISION_AFTER
    finish(installation, during, tmp_path / "during")
    for name, replica in new.items():
        until(partial(is_ready, replica), f"the next {name} is ready")
    both = installation.request("flow", "2013-02-01", "2013-02-03")
    installation.wait_state(both, "succeeded")

    # The services of a release are replaced one by one, in the middle of a backfill.
    rolling = gated(installation, tmp_path / "rolling", 3)
    for name in ("callback-runner", "deadline-watcher", "backfill-planner"):
        old.pop(name).stop()
    finish(installation, rolling, tmp_path / "rolling")
    (starter,) = old.values()
    starter.stop()
    alone = installation.request("flow", "2013-05-01", "2013-05-03", latest_code=True)
    installation.wait_state(alone, "succeeded")

    by_state = installation.query("SELECT state, attempt, count(*) AS n FROM run GROUP BY state, attempt")
    assert by_state == [{"state": "succeeded", "attempt": 1, "n": 12}]
    assert lost_attempts(installation) == []
    assert installation.events(Topic.DEAD_LETTERS) == []
    assert installation.query("SELECT id FROM backfill WHERE code_follows") == [{"id": alone}]


def is_ready(replica: Replica) -> bool:
    return '"event": "started"' in replica.said()


def test_the_command_line_says_what_an_older_schema_lacks(installation: Installation) -> None:
    with installation.session() as owner:
        owner.execute("ALTER TABLE backfill DROP COLUMN review CASCADE")
        owner.commit()
    status, err = ended(command(installation, "backfill", "list"))
    assert status == 1
    assert err.startswith("retrofill: the schema is older than this command (column ")
    assert err.endswith("): run 'retrofill init' of this release\n")


def test_init_holds_nobody_up_who_comes_after_what_it_waits_for(installation: Installation, after: Path) -> None:
    """A long transaction reads the table that init alters. Other readers are not blocked, and the
    change is applied once the transaction ends.
    """
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'retrofill-init' AND wait_event_type = 'Lock'"
    )
    gave_way = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
    with installation.session() as reader:
        reader.execute("SELECT count(*) FROM backfill")
        init = command(installation, "init", tree=after)
        until(lambda: installation.value(waits) == 1, "init waits for the table")
        # Queued behind init's lock until init gives up its place.
        assert installation.value("SELECT count(*) FROM backfill") == 0
        until(lambda: installation.value(gave_way) == 0, "init gave up its place in the queue")
        assert init.poll() is None
        assert schema_of(installation) == REVISION
    assert ended(init) == (0, "")
    assert schema_of(installation) == REVISION_AFTER


@pytest.mark.long
def test_a_newer_schema_is_left_alone_and_worked_with(installation: Installation) -> None:
    """After a downgrade, the older release's init changes neither the schema nor its grants."""
    kept = "SELECT has_table_privilege('retrofill_reader', 'retrofill.run', 'TRUNCATE')"
    installation.query("UPDATE alembic_version SET version_num = '9999' RETURNING 1")
    with installation.session() as owner:
        # A privilege that this release does not grant.
        owner.execute("GRANT TRUNCATE ON run TO retrofill_reader")
        owner.commit()
    assert ended(command(installation, "init")) == (0, "")
    assert (schema_of(installation), installation.value(kept)) == ("9999", True)
    all_services(installation)
