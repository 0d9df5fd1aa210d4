"""Packages are addressed by content hash, like code: a backfill keeps those that it was planned with.

Everything is real except Spark: the CLI, pex and pip, the planner, the run-starter and its warm drivers.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.installation import Installation, until
from tests.support.shipped import FLOW, User, user_of
from tests.support.wheels import configured, make_wheel

# Read where it is applied, without the package installed there.
WITH_PACKAGE = "import greeting as words\n" + FLOW.replace("    import words\n", "")


@pytest.fixture
def user(installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    for version in ("1.0", "2.0"):
        make_wheel(tmp_path / "index", "greeting", version, f"TEXT = {version!r}\n")
    for name, value in configured(tmp_path / "index", tmp_path / "pex").items():
        monkeypatch.setenv(name, value)
    made = user_of(installation, tmp_path / "flows", RETROFILL_CODE_STORE=str(tmp_path / "store"))
    # They apply from a machine of their own.
    made.environment["RETROFILL_CODE_CACHE"] = str(tmp_path / "cache")
    (made.folder / "flow.py").write_text(WITH_PACKAGE)
    return made


def apply(user: User, requirements: str | None) -> str:
    """Returns the hash of the environment, empty if there is none."""
    more = []
    if requirements is not None:
        file = user.folder.parent / "requirements.txt"
        file.write_text(requirements)
        more = ["--requirements", str(file)]
    (result,) = user.ask("pipelines", "apply", str(user.folder / "flow.py"), *more)["pipelines"]
    assert result["accepted"]
    return result["environment_sha256"] or ""


def errors(user: User, id: str) -> set[tuple[str, str]]:
    """Why runs failed, without the hashes of files."""
    user.made.wait_state(id, "failed")
    return {(run["error"]["type"], run["error"]["message"]) for run in user.ask("backfill", "show", id)["failed_runs"]}


@pytest.mark.long
def test_a_backfill_stays_on_the_packages_that_it_was_planned_with(user: User) -> None:
    one = apply(user, "greeting==1.0\n")
    shown = user.run("pipelines", "show", "flow").stdout
    assert f"{one[:12]} (Python {sys.version_info[0]}.{sys.version_info[1]})" in shown
    user.create("stays", 1, gate=True)
    user.create("follows", 2, "--latest-code", gate=True)
    until(
        lambda: len(user.made.query("SELECT 1 FROM run WHERE state = 'running'")) == 2, "both have begun", seconds=120
    )
    two = apply(user, "greeting==2.0\n")
    assert two != one
    user.create("new", 3)
    user.made.wait_state("new", "succeeded")
    user.open_gate("stays")
    user.open_gate("follows")
    for id in ("stays", "follows"):
        user.made.wait_state(id, "succeeded")
    assert user.wrote("stays") == ["1.0"] * 3
    assert user.wrote("follows") == ["1.0", "2.0", "2.0"]
    assert user.wrote("new") == ["2.0"] * 3

    # Each apply says what the pipeline needs.
    (user.folder / "flow.py").write_text(FLOW.replace("import words", "import greeting"))
    assert apply(user, None) == ""
    user.create("without", 4)
    assert errors(user, "without") == {("ModuleNotFoundError", "No module named 'greeting'")}
