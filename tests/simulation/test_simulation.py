"""Plays a fixed set of schedules. ``python -m tests.simulation`` runs any number of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from retrofill_core.store import backfills, claims
from tests.simulation import jobs
from tests.simulation.jobs import CALLED_WITHIN, Share, find
from tests.simulation.memory.engine import Database, Unsupported
from tests.simulation.mutations import DIRECTED, INVARIANT_OF, INVARIANTS, MUTATIONS, applied
from tests.simulation.mutations.patch import Patch, Patches
from tests.simulation.schedule import run_schedule
from tests.simulation.scheduler import Scheduler
from tests.simulation.shims import exchanged

ROOT = Path(__file__).parents[2]
SCHEDULES = 50
# A value that no function reads.
UNREAD = 1


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the simulation in its own process, where the hash seed can be fixed at startup."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_schedule_breaks_an_invariant() -> None:
    said = simulate("--schedules", str(SCHEDULES))
    assert said.returncode == 0, said.stdout + said.stderr
    assert f"{SCHEDULES} schedules" in said.stdout
    # Most schedules must plan several runs, or bugs that need several could not appear.
    alone = re.search(r"runs planned: .*\b1: (\d+)%", said.stdout)
    assert alone and int(alone[1]) <= 20, said.stdout


def test_a_seed_repeats_its_schedule() -> None:
    with exchanged():
        first = [run_schedule(seed) for seed in (3, 8)]
        again = [run_schedule(seed) for seed in (3, 8)]
    assert first == again


@pytest.mark.long
def test_a_seed_is_the_same_schedule_in_every_process_and_after_any_other() -> None:
    """A seed takes the same steps alone, after others, and split over several processes."""
    alone = [counted(simulate("--seed", seed)) for seed in ("5", "6")]
    shared = counted(simulate("--first", "5", "--schedules", "2", "--jobs", "2"))
    assert shared == [sum(each) for each in zip(*alone, strict=True)]


def counted(said: subprocess.CompletedProcess[str]) -> list[int]:
    """Counts of steps, statements, commits and events."""
    assert said.returncode == 0, said.stdout + said.stderr
    line = next(line for line in said.stdout.splitlines() if "statements" in line)
    return [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", line)]


def test_a_violation_is_found_and_told_with_its_seed() -> None:
    """Each mutation is a plausible small change that breaks an invariant.

    ``make verify`` tries all of them.
    """
    names = ("unknown_batch_is_resent", "claims_beyond_limits", "no_attempt_guard")
    said = simulate("--mutation", *names, "--schedules", "100")
    assert said.returncode == 0, said.stdout + said.stderr
    for name in names:
        assert re.search(f"{name} +found by .*, seed ", said.stdout), said.stdout
    assert all(mutations for _, mutations in INVARIANTS.values()) and len(INVARIANTS) == 14


def test_an_exception_of_the_mutated_code_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not show that a check finds what the mutation breaks."""

    def lock_free(conn: Any, ids: Any) -> Any:
        raise KeyError("no such column")

    def broken(patch: Patch) -> None:
        patch(backfills, "lock_free", lock_free)

    monkeypatch.setitem(MUTATIONS, "broken", broken)
    monkeypatch.setitem(INVARIANT_OF, "broken", 14)
    found = find("broken", Share(0, schedules=1))
    assert found == "not found in 1 schedules; seed 0 ended with KeyError: 'no such column'"


@pytest.mark.parametrize("name", [*MUTATIONS, *DIRECTED])
def test_every_mutation_fits_the_code(name: str) -> None:
    with applied(name):
        pass


@pytest.mark.long
def test_every_mutation_replaces_what_the_services_call() -> None:
    """A function that the code calls no more, or calls by another way, would be replaced in vain."""
    replaced = Patches()
    with exchanged():
        for mutation in MUTATIONS.values():
            mutation(lambda owner, name, _: replaced.count(owner, name))
        try:
            for seed in range(CALLED_WITHIN):
                run_schedule(seed)
                if all(replaced.calls.values()):
                    break
        finally:
            replaced.undo()
    assert not [name for name, times in replaced.calls.items() if not times]


def test_a_mutation_that_does_not_fit_the_code_is_an_error() -> None:
    """Otherwise it would break the code in some other way and count as found."""
    patches = Patches()
    with pytest.raises(AttributeError, match="has no rooms"):
        patches(claims, "rooms", lambda conn: {})
    with pytest.raises(TypeError, match="too many positional arguments"):
        patches(claims, "next_queued", lambda conn: {})
    with pytest.raises(AttributeError, match="reads UNREAD: the mutation replaces nothing"):
        patches(sys.modules[__name__], "UNREAD", 2)


@pytest.mark.long
def test_a_mutation_that_replaces_what_nothing_calls_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def idle(patch: Patch) -> None:
        patch(sys.modules[__name__], "simulate", simulate)

    monkeypatch.setitem(MUTATIONS, "idle", idle)
    monkeypatch.setitem(INVARIANT_OF, "idle", 14)
    monkeypatch.setattr(jobs, "CALLED_WITHIN", 1)
    found = find("idle", Share(0, schedules=2))
    assert found == f"replaces what nothing called in 1 schedules: {__name__}.simulate"


def test_what_the_store_does_not_know_is_refused() -> None:
    database = Database(Scheduler(0))
    with pytest.raises(Unsupported):
        database.execute(database.begin("x"), select(func.pg_sleep(1)), None)
