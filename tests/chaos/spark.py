"""The whole stack with Spark: kills ``up``, supervisord and every part; after ``up``, all work
finishes.

The oracle checks rows and topics, pandas checks the figures on disk, and every run must succeed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.settings import Settings
from tests.acceptance.test_whole_stack import backfill
from tests.chaos import audit
from tests.chaos.history import History, Known, Wish, gather
from tests.chaos.oracle import PROMISES, Violation, check
from tests.chaos.report import Result
from tests.chaos.stage import lists_of, still_waiting, waiting
from tests.support.installation import ROOT, Installation, until
from tests.support.user import User, is_driver

FIRST, LAST, DAYS = "2013-05-01", "2013-05-30", 30
ID = "spark-chaos"
PIPELINE = "flights_daily"
# These promises need drivers and callbacks that record their work, or days in UTC.
ELSEWHERE = {
    "every_interval_has_its_outcome",
    "skips_are_due",
    "refusals_are_due",
    "each_callback_is_called",
    "the_output_is_right",
    "no_output_without_work",
}
JUDGED = [name for name in PROMISES if name not in ELSEWHERE]
# The parts to kill, and their names in the table.
PARTS = {
    "driver": "a driver",
    "spark-connect": "Spark Connect",
    "run-starter": "run-starter",
    "postgres": "Postgres",
    "kafka": "Kafka",
    "supervisor": "supervisord",
}


def spark_stack(seed: int, name: str) -> Result:
    """Kill each part of a running stack, in an order that the seed gives."""
    began = time.monotonic()
    chance = random.Random(seed)
    faults: Counter[str] = Counter()
    recoveries: dict[str, list[float]] = {}
    history = History()
    with tempfile.TemporaryDirectory(prefix="retrofill-chaos-") as folder:
        user = User(Path(folder) / "home")
        user.home.mkdir()
        prepare = [sys.executable, str(ROOT / "examples/flights/prepare.py"), str(user.data)]
        subprocess.run(prepare, check=True, timeout=120)
        try:
            _kill_up(user, chance.uniform(1, 8), faults)
            user.run("up")
            made = Installation(Settings(home=user.home))
            audit.install(made)
            user.run("pipelines", "apply", str(ROOT / "examples/flights/pipeline.py"))
            backfill(user, ID, FIRST, LAST)
            for n, part in enumerate(chance.sample(sorted(PARTS), len(PARTS))):
                _wait_succeeded(user, 3 * (n + 1))
                _kill(user, part)
                faults[f"kill -9 of {PARTS[part]} (with Spark)"] += 1
                if part == "supervisor":
                    user.run("up")
                healed = time.monotonic()
                _wait_succeeded(user, _succeeded(user) + 1)
                recoveries.setdefault(f"{PARTS[part]} killed (with Spark)", []).append(time.monotonic() - healed)
            # The last server to be killed may not answer a command yet.
            _wait_succeeded(user, DAYS)
            user.run("backfill", "watch", ID)
            history = _history(made)
            violations = [*_wrong(user), *check(history, JUDGED)]
        except Exception as e:  # noqa: BLE001 - any error means that the scenario was not played to its end
            violations = [Violation("the_scenario_itself", f"{type(e).__name__}: {e}")]
        finally:
            user.run("down")
            left = user.processes()
    if left:
        violations.append(Violation("down_leaves_nothing", str(left)))
    events = sum(map(len, history.events.values()))
    return Result(name, seed, time.monotonic() - began, faults, events, DAYS, violations, recoveries)


def _history(made: Installation) -> History:
    """Read the history once all work is done."""
    wishes = {ID: Wish(ID, PIPELINE, date.fromisoformat(FIRST), date.fromisoformat(LAST))}
    undrained = still_waiting(lambda: waiting(made, wishes))
    (definition,) = [
        row["definition"] for row in made.query("SELECT definition FROM pipeline WHERE name = %s", PIPELINE)
    ]
    limits = {PIPELINE: definition["max_active_runs"]}
    batches = {PIPELINE: definition.get("batch_size", 1)}
    alerts = {PIPELINE: definition["deadlines"]}
    lists = {PIPELINE: lists_of(PipelineDefinition.model_validate(definition))}
    known = Known(made.settings.home, wishes, set(), limits, batches, alerts, lists, undrained=undrained)
    return gather(made, known)


def _kill_up(user: User, seconds: float, faults: Counter[str]) -> None:
    """Kill ``up`` while it starts the stack: after ``seconds``, or sooner if it ends before."""
    command = [str(Path(sys.executable).with_name("retrofill")), "up"]
    while True:
        process = subprocess.Popen(command, env=user.environment, cwd=user.home, stdout=subprocess.DEVNULL)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            faults["kill -9 of up"] += 1
            return
        assert status == 0, f"up ended with status {status} before it was killed"
        user.run("down")
        seconds /= 2


def _kill(user: User, part: str) -> None:
    if part == "supervisor":
        pid = int((user.home / "run" / "supervisord.pid").read_text())
    elif part == "driver":
        pid = _a_driver(user)
    else:
        found = user.pid(part)
        assert found is not None, f"{part} does not run"
        pid = found
    os.kill(pid, signal.SIGKILL)


def _a_driver(user: User) -> int:
    found: list[int] = []

    def there() -> bool:
        host = user.pid("run-starter")
        if host is not None and psutil.pid_exists(host):
            found[:] = [child.pid for child in psutil.Process(host).children() if is_driver(child)]
        return bool(found)

    until(there, "there is a driver", seconds=120)
    return found[0]


def _succeeded(user: User) -> int:
    done = user.start("backfill", "show", ID, "--json")
    return 0 if done.returncode else int(_by_state(done.stdout).get("succeeded", 0))


def _by_state(document: str) -> dict[str, Any]:

    return dict(json.loads(document)["by_state"])


def _wait_succeeded(user: User, wanted: int) -> None:
    until(lambda: _succeeded(user) >= min(wanted, DAYS), f"{wanted} runs succeeded", seconds=300)


def _wrong(user: User) -> list[Violation]:
    """Runs that did not succeed, and days whose figures differ from what pandas computes."""
    shown = user.json("backfill", "show", ID)
    wrong = []
    if shown["by_state"] != {"succeeded": DAYS}:
        wrong.append(Violation("every_interval_has_its_outcome", str(shown["by_state"])))
    for day in pd.date_range(FIRST, LAST).strftime("%Y-%m-%d"):
        source = pd.read_parquet(user.data / "flights" / f"day={day}")
        figures = pd.read_parquet(user.data / "delays" / f"day={day}").set_index("carrier")
        if figures["flights"].to_dict() != source.groupby("carrier").size().to_dict():
            wrong.append(Violation("the_output_is_right", f"the figures of {day}"))
    return wrong
