"""Run-starters that serve different pools, on a real Kafka and Postgres, with real driver processes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import psutil
import pytest
from tests.support.installation import Installation, until
from tests.support.loading import definition_of, load_pipelines
from tests.support.replica import Replica
from tests.support.shown import everything
from tests.support.stacks import stack
from tests.support.terminal import Cli, cli, point_at

__all__ = ["cli", "stack"]
CANARY = "hunter2-canary"
OF_FILE, OF_HOST = f"{CANARY}-of-file", f"{CANARY}-of-host"
# By the pool of its definition: which hosts got attempts, and of which pool those were.
PLACES = (
    "SELECT DISTINCT backfill.definition ->> 'pool' AS pool, host.pool AS served, host.name "
    "FROM attempt JOIN backfill ON backfill.id = backfill_id JOIN host ON host.id = host_id"
)
CODE = """
import hashlib, os, pathlib, sys, time
from retrofill import Pipeline

p = Pipeline("p", schedule="@daily", pool="gpu", executor="pool")

@p.task
def only(run):
    out, key, token = pathlib.Path(run.conf["out"]), os.environ["KEY"], os.environ["TOKEN"]
    print("printed", key, token)
    print("printed", key, token, file=sys.stderr)
    assert "HOSTS_TOKEN" not in os.environ and "RETROFILL_POOLS_FILE" not in os.environ
    (out / "seen").write_text(hashlib.sha256(f"{key} {token} {os.environ['REGION']}".encode()).hexdigest())
    while not (out / "go").exists() and out.exists():
        time.sleep(0.05)
    raise ValueError(f"cannot log in with {key} and {token}")
"""


@pytest.fixture
def here(stack: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line works on the installation."""
    point_at(stack, monkeypatch)


def pools_file(stack: Installation, text: str) -> str:
    path = stack.settings.home / "pools.toml"
    path.write_text(text)
    return str(path)


def starter(stack: Installation, file: str, serves: str, **more: str) -> Replica:
    """A run-starter with two seats of each pool that it serves."""
    settings = {"RETROFILL_POOLS_FILE": file, "RETROFILL_SERVES": serves, "RETROFILL_DRIVER_SLOTS": "2"}
    before = stack.value("SELECT count(*) FROM seat WHERE warm")
    made = stack.start("light-starter", {**settings, **more})
    there = before + 2 * len(serves.split(","))
    until(lambda: stack.value("SELECT count(*) FROM seat WHERE warm") == there, "its seats are warm", made.said)
    return made


def apply_gpu(stack: Installation, name: str, pool: str, folder: Path) -> None:
    """A trivial pipeline of a pool."""
    file = folder / f"{name}.py"
    file.write_text(
        f"from retrofill import Pipeline\n{name} = Pipeline({name!r}, schedule='@daily', pool={pool!r})\n"
        f"@{name}.task\ndef only(run):\n    pass\n"
    )
    ((pipeline, location),) = load_pipelines(file)
    stack.apply(definition_of(pipeline, location))


def name_of(replica: Replica, stack: Installation) -> str:
    names = [row["name"] for row in stack.query("SELECT DISTINCT name FROM host")]
    return str(next(name for name in names if name.endswith(f"-{replica.process.pid}")))


@pytest.mark.long
def test_runs_land_on_hosts_that_serve_their_pool(stack: Installation, tmp_path: Path) -> None:
    file = pools_file(stack, "[gpu]\n[idle]\n")
    one, other = starter(stack, file, "default"), starter(stack, file, "gpu,idle")
    for name, pool in (("p", "default"), ("g", "gpu")):
        apply_gpu(stack, name, pool, tmp_path)
    ids = [stack.request(name, "2020-01-01", "2020-01-06", id=f"{name}-{n}") for n, name in enumerate("pg")]
    assert [stack.wait_state(id, "succeeded", "failed") for id in ids] == ["succeeded", "succeeded"]
    found = {(row["pool"], row["served"], row["name"]) for row in stack.query(PLACES)}
    assert found == {("default", "default", name_of(one, stack)), ("gpu", "gpu", name_of(other, stack))}
    assert stack.query("SELECT DISTINCT attempt, lost_attempts FROM run") == [{"attempt": 1, "lost_attempts": 0}]


@pytest.mark.usefixtures("here")
@pytest.mark.long
def test_runs_of_a_pool_that_nobody_serves_wait_and_say_why(stack: Installation, cli: Cli, tmp_path: Path) -> None:
    file = pools_file(stack, "[gpu]\n")
    starter(stack, file, "default")
    apply_gpu(stack, "g", "gpu", tmp_path)
    apply_gpu(stack, "p", "default", tmp_path)
    why = "no run-starter serves the pool gpu: start one that does"
    applied = cli("pipelines", "apply", str(tmp_path / "g.py"), "--in-place")
    assert (applied.status, applied.out) == (0, "g: nothing changed\n")
    assert applied.err.startswith(f"retrofill: {why}")
    preview = cli("backfill", "dry-run", "g", "--from", "2020-01-01", "--to", "2020-01-05", "--json")
    assert (preview.document["pool"], preview.document["pool_wait"][: len(why)]) == ("gpu", why)
    waits = stack.request("g", "2020-01-01", "2020-01-05", id="waits")
    # Others go on.
    goes_on = stack.request("p", "2020-01-01", "2020-01-20", id="goes-on")
    assert stack.wait_state(goes_on, "succeeded", "failed") == "succeeded"
    assert stack.runs_by_state(waits) == {"queued": 5}
    assert json.loads(cli("backfill", "show", waits, "--json").out)["held_back"].startswith(why)
    assert "no run-starter serves the pool gpu" in cli("backfill", "show", waits).out
    assert "no run-starter" not in cli("backfill", "dry-run", "p", "--from", "2020-02-01", "--to", "2020-02-05").err
    before = {each["pool"]: each for each in cli("pools", "list", "--json").document}
    assert (before["gpu"]["hosts"], before["gpu"]["pipelines"]) == (0, 1)
    assert "nobody serves it" in cli("pools", "list").out
    starter(stack, file, "gpu")
    assert stack.wait_state(waits, "succeeded", "failed") == "succeeded"
    after = {each["pool"]: each for each in cli("pools", "list", "--json").document}
    assert {pool: (each["hosts"], each["slots"]) for pool, each in after.items()} == {"default": (1, 2), "gpu": (1, 2)}
    assert all(each["python"] for each in after.values())
    assert {each["pool"] for each in cli("hosts", "--json").document} == {"default", "gpu"}


def test_a_secret_of_a_pool_is_in_no_topic_table_log_or_command_line(stack: Installation, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{OF_FILE}\n")
    (tmp_path / "p.py").write_text(CODE)
    env = f'REGION = "eu"\nKEY = {{file = "{tmp_path / "key"}"}}\nTOKEN = {{variable = "HOSTS_TOKEN"}}\n'
    stack.nursery = None
    made = starter(stack, pools_file(stack, f"[gpu.env]\n{env}"), "gpu", HOSTS_TOKEN=OF_HOST)
    ((pipeline, location),) = load_pipelines(tmp_path / "p.py")
    stack.apply(definition_of(pipeline, location))
    id = stack.request("p", "2020-01-01", "2020-01-01", conf={"out": str(tmp_path)})
    until((tmp_path / "seen").exists, "the task has its variables", made.said)
    root = psutil.Process(made.process.pid)
    commands = [" ".join(each.cmdline()) for each in (root, *root.children(recursive=True))]
    (tmp_path / "go").touch()
    assert stack.wait_state(id, "succeeded", "failed") == "failed"
    # It did have the values.
    expected = hashlib.sha256(f"{OF_FILE} {OF_HOST} eu".encode()).hexdigest()
    assert (tmp_path / "seen").read_text() == expected
    shown = everything(stack) | {"commands": "\n".join(commands)}
    assert len(commands) >= 3
    assert [place for place, text in shown.items() if CANARY in text] == []
    logs = "".join(text for place, text in shown.items() if "/attempts/" in place)
    assert logs.count("printed *** ***") == 2
    assert "cannot log in with *** and ***" in shown["run"]
