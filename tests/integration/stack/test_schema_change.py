"""Rolling upgrades: a new release's schema arrives while the previous release is running, and both
keep working.

Everything is real except Spark. The previous release's code comes from the git history.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.installation import ROOT, Installation, until
from tests.support.releases import at_schema_before, command, dropped, ended, schema_of, tree_before
from tests.support.replica import Replica

from retrofill.contract.topics import SERVICES, Topic
from retrofill.domain.pipeline import CodeLocation, PipelineDefinition, TaskDefinition
from retrofill.store.tables import REVISION

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
WAITING = f"this release needs {REVISION}: run this release's 'retrofill init'"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The previous release's code."""
    return tree_before(tmp_path_factory.mktemp("before"))


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
    return {name: made.start(module, wait, tree=tree) for name, module in modules.items()}


def gated(made: Installation, gate: Path, month: int) -> str:
    """Create a three-day backfill whose runs wait at the gate. Returns once the first run has
    started.
    """
    os.mkfifo(gate)
    days = (f"2013-{month:02}-01", f"2013-{month:02}-03")
    id = made.request("flow", *days, max_active_runs=1, conf={"gate": str(gate)})
    until(lambda: made.runs_by_state(id).get("running") == 1, f"a run of {id} has begun")
    return id


def finish(made: Installation, id: str, gate: Path) -> None:
    """Open the gate for one run at a time until the backfill has succeeded."""

    def over() -> bool:
        # Opening fails while no run waits at the gate.
        with suppress(OSError):
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
        return made.value("SELECT state FROM backfill WHERE id = %s", id) == "succeeded"

    until(over, f"{id} succeeded", lambda: str(made.runs_by_state(id)))


def lost_attempts(made: Installation) -> list[str]:
    return [e.body["run_id"] for e in made.events(Topic.RUN_EVENTS) if e.body["type"] == "RunAttemptLost"]


@pytest.mark.long
def test_the_release_before_goes_on_under_the_new_schema(
    installation: Installation, before: Path, flow: PipelineDefinition, tmp_path: Path
) -> None:
    dropped(installation)
    assert ended(command(installation, "init", tree=before)) == (0, "")
    assert schema_of(installation) < REVISION
    old = all_services(installation, before)
    installation.apply(flow)
    during = gated(installation, tmp_path / "during", 1)

    # Expand the schema in the middle of a run: this run, later runs and new backfills all work.
    assert ended(command(installation, "init")) == (0, "")
    assert schema_of(installation) == REVISION
    finish(installation, during, tmp_path / "during")
    after = installation.request("flow", "2013-02-01", "2013-02-03")
    installation.wait_state(after, "succeeded")

    # The new release starts beside the old one and takes over its backfills.
    rolling = gated(installation, tmp_path / "rolling", 3)
    all_services(installation)
    both = installation.request("flow", "2013-04-01", "2013-04-03")
    installation.wait_state(both, "succeeded")
    for name in ("backfill-planner", "deadline-watcher", "callback-runner"):
        old[name].stop()
    finish(installation, rolling, tmp_path / "rolling")
    old["run-starter"].stop()
    alone = installation.request("flow", "2013-05-01", "2013-05-03", latest_code=True)
    installation.wait_state(alone, "succeeded")

    states = installation.query("SELECT state, count(*) AS n FROM run GROUP BY state")
    assert states == [{"state": "succeeded", "n": 15}]
    assert lost_attempts(installation) == []
    assert installation.events(Topic.DEAD_LETTERS) == []
    assert installation.query("SELECT id FROM backfill WHERE code_follows") == [{"id": alone}]


def test_the_new_release_waits_for_its_schema_while_the_one_before_works(
    installation: Installation, before: Path, flow: PipelineDefinition
) -> None:
    dropped(installation)
    assert ended(command(installation, "init", tree=before)) == (0, "")
    all_services(installation, before)
    new = all_services(installation, wait=False)
    for name, replica in new.items():
        until(lambda replica=replica: WAITING in replica.said(), f"the new {name} waits")
    installation.apply(flow)
    id = installation.request("flow", "2013-01-01", "2013-01-03")
    installation.wait_state(id, "succeeded")
    assert not [name for name, replica in new.items() if replica.process.poll() is not None or is_ready(replica)]

    assert ended(command(installation, "init")) == (0, "")
    for name, replica in new.items():
        until(lambda replica=replica: is_ready(replica), f"the new {name} is ready")


def is_ready(replica: Replica) -> bool:
    return '"event": "started"' in replica.said()


def test_the_new_release_waits_for_its_schema(installation: Installation, flow: PipelineDefinition) -> None:
    """Covers the case where git history is unavailable: only the previous schema is needed."""
    at_schema_before(installation)
    new = all_services(installation, wait=False)
    for name, replica in new.items():
        until(lambda replica=replica: WAITING in replica.said(), f"the new {name} waits")
        line = json.loads(next(line for line in replica.said().splitlines() if WAITING in line))
        assert line["event"] == "waiting_for_init"
    assert not [name for name, replica in new.items() if is_ready(replica)]
    # It owns no shard in the meantime.
    assert installation.value("SELECT count(*) FROM backfill_planner_shard WHERE owner IS NOT NULL") == 0

    assert ended(command(installation, "init")) == (0, "")
    installation.apply(flow)
    id = installation.request("flow", "2013-01-01", "2013-01-03")
    installation.wait_state(id, "succeeded")


def test_the_new_command_line_says_what_it_lacks(installation: Installation) -> None:
    at_schema_before(installation)
    status, err = ended(command(installation, "backfill", "list"))
    assert status == 1
    assert err.startswith("retrofill: the schema is older than this command (column ")
    assert err.endswith("): run 'retrofill init' of this release\n")


def test_init_holds_nobody_up_who_comes_after_what_it_waits_for(installation: Installation) -> None:
    """A long transaction reads the table that init alters. Other readers are not blocked, and the
    change is applied once the transaction ends.
    """
    at_schema_before(installation)
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'retrofill-init' AND wait_event_type = 'Lock'"
    )
    gave_way = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
    with installation.session() as reader:
        reader.execute("SELECT count(*) FROM backfill")
        init = command(installation, "init")
        until(lambda: installation.value(waits) == 1, "init waits for the table")
        # Queued behind init's lock until init gives up its place.
        assert installation.value("SELECT count(*) FROM backfill") == 0
        until(lambda: installation.value(gave_way) == 0, "init gave up its place in the queue")
        assert init.poll() is None
        assert schema_of(installation) < REVISION
    assert ended(init) == (0, "")
    assert schema_of(installation) == REVISION


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
