"""A new release's schema arrives while the release before is at work: neither stops, and each survives the other.

Everything is real but Spark. The release before is real too: its code is taken from git's history.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.installation import ROOT, Installation, Replica, until
from tests.support.releases import at_schema_before, command, dropped, ended, schema_of, tree_before

from retrofill.contract.topics import SERVICES, Topic
from retrofill.domain.pipeline import CodeLocation, PipelineDefinition, TaskDefinition
from retrofill.store.tables import REVISION

# Each run of a backfill with a gate waits there until somebody opens it.
FLOW = """
from pathlib import Path
from retrofill import Pipeline

flow = Pipeline("flow", schedule="@daily", start="2013-01-01")

@flow.task
def write(run):
    if "gate" in run.conf:
        open(run.conf["gate"]).close()
"""
WAITING = f"this release needs {REVISION}: run 'retrofill init' of this release"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of the release before."""
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
    """One replica of each service, drivers without Spark."""
    modules = {name: "light-starter" if name == "run-starter" else name for name in SERVICES}
    return {name: made.start(module, wait, tree=tree) for name, module in modules.items()}


def gated(made: Installation, gate: Path, month: int) -> str:
    """A backfill of three days whose runs wait at the gate, once the first one does."""
    os.mkfifo(gate)
    days = (f"2013-{month:02}-01", f"2013-{month:02}-03")
    id = made.request("flow", *days, max_active_runs=1, conf={"gate": str(gate)})
    until(lambda: made.runs_by_state(id).get("running") == 1, f"a run of {id} has begun")
    return id


def finish(made: Installation, id: str, gate: Path) -> None:
    """Open the gate to one run after the other until the backfill has ended."""

    def over() -> bool:
        # Where nobody waits there now, it cannot be opened.
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

    # Expanded in the middle of a run: it goes on, and so do the next ones and new backfills.
    assert ended(command(installation, "init")) == (0, "")
    assert schema_of(installation) == REVISION
    finish(installation, during, tmp_path / "during")
    after = installation.request("flow", "2013-02-01", "2013-02-03")
    installation.wait_state(after, "succeeded")

    # The new release comes, beside the old one at first, and takes over what that had begun.
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
    """Also where the history of the release before is not at hand: all that it takes is the schema of before."""
    at_schema_before(installation)
    new = all_services(installation, wait=False)
    for name, replica in new.items():
        until(lambda replica=replica: WAITING in replica.said(), f"the new {name} waits")
        line = json.loads(next(line for line in replica.said().splitlines() if WAITING in line))
        assert line["event"] == "waiting_for_init"
    assert not [name for name, replica in new.items() if is_ready(replica)]
    # It owns nothing meanwhile.
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
    """A long reader has the table that is changed: others read it all the same, and the change comes once it is gone."""
    at_schema_before(installation)
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'retrofill-init' AND wait_event_type = 'Lock'"
    )
    gave_way = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
    with installation.session() as reader:
        reader.execute("SELECT count(*) FROM backfill")
        init = command(installation, "init")
        until(lambda: installation.value(waits) == 1, "init waits for the table")
        # Behind init's lock in the queue, until init gives up its place.
        assert installation.value("SELECT count(*) FROM backfill") == 0
        until(lambda: installation.value(gave_way) == 0, "init gave up its place in the queue")
        assert init.poll() is None
        assert schema_of(installation) < REVISION
    assert ended(init) == (0, "")
    assert schema_of(installation) == REVISION


@pytest.mark.long
def test_a_newer_schema_is_left_alone_and_worked_with(installation: Installation) -> None:
    """As when somebody goes back to the release before: init changes neither the schema nor the rights of the newer one."""
    kept = "SELECT has_table_privilege('retrofill_reader', 'retrofill.run', 'TRUNCATE')"
    installation.query("UPDATE alembic_version SET version_num = '9999' RETURNING 1")
    with installation.session() as owner:
        # A right that this release does not give.
        owner.execute("GRANT TRUNCATE ON run TO retrofill_reader")
        owner.commit()
    assert ended(command(installation, "init")) == (0, "")
    assert (schema_of(installation), installation.value(kept)) == ("9999", True)
    all_services(installation)
