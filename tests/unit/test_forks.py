"""The tests' forked services: they are what ``python -m`` is."""

import os

import pytest
from tests.support.forks import Nursery


@pytest.fixture(scope="module")
def nursery():
    made = Nursery()
    yield made
    made.close()


def test_a_fork_has_the_output_environment_and_exit_code_of_an_interpreter(nursery, tmp_path):
    zen, broken = nursery.start("this", os.environ, tmp_path / "zen"), nursery.start("json.tool", {}, tmp_path / "json")
    assert zen.wait(60) == 0
    assert (tmp_path / "zen").read_text().startswith("The Zen of Python")
    assert broken.wait(60) == 1
    assert "Expecting value" in (tmp_path / "json").read_text()


def test_a_service_that_cannot_start_says_why(nursery, tmp_path):
    env = {"RETROFILL_HOME": str(tmp_path), "RETROFILL_PARTITIONS": "none"}
    planner = nursery.start("backfill_planner", env, tmp_path / "log")
    assert planner.wait(60) != 0
    assert "RETROFILL_PARTITIONS" in (tmp_path / "log").read_text()


def test_a_killed_fork_ends_with_the_signal(nursery, tmp_path):
    planner = nursery.start("backfill_planner", {"RETROFILL_HOME": str(tmp_path)}, tmp_path / "log")
    planner.kill()
    assert planner.wait(60) == -9
