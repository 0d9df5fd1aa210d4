"""Code is addressed by content hash: a backfill keeps the code that it was planned with, and a
driver never runs any other.

Everything is real except Spark: the CLI, the planner, the run-starter and its warm drivers.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.installation import Installation, until
from tests.support.shipped import FLOW, User, user_of

from retrofill_core.contract.topics import Topic


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def user(installation: Installation, tmp_path: Path, store: Path) -> User:
    return user_of(installation, tmp_path / "flows", RETROFILL_CODE_STORE=str(store))


@pytest.mark.long
def test_a_backfill_stays_on_the_code_that_it_was_planned_with(user: User, store: Path) -> None:
    one = user.apply("one")
    assert (store / f"{one}.zip").is_file()
    user.create("stays", 1, gate=True)
    user.create("follows", 2, "--latest-code", gate=True)
    until(lambda: user.used("stays")[0] == user.used("follows")[0] == one, "both have begun")
    two = user.apply("two")
    assert two != one
    user.create("new", 3)
    user.made.wait_state("new", "succeeded")
    user.open_gate("stays")
    user.open_gate("follows")
    for id in ("stays", "follows"):
        user.made.wait_state(id, "succeeded")

    assert (user.used("stays"), user.wrote("stays")) == ([one] * 3, ["one"] * 3)
    assert (user.used("follows"), user.wrote("follows")) == ([one, two, two], ["one", "two", "two"])
    assert (user.used("new"), user.wrote("new")) == ([two] * 3, ["two"] * 3)

    user.made.wait_published()
    started = [event.body for event in user.made.events(Topic.RUN_EVENTS) if event.body["type"] == "RunStarted"]
    assert [body["code_sha256"] for body in started if body["backfill_id"] == "follows"] == [one, two, two]
    shown = user.ask("backfill", "show", "follows")
    assert (shown["code_sha256"], shown["latest_code"], shown["runs_by_code"]) == (one, True, {one: 1, two: 2})
    shown = user.ask("backfill", "show", "stays")
    assert (shown["code_sha256"], shown["latest_code"], shown["runs_by_code"]) == (one, False, {one: 3})
    assert ["code", one[:12]] in [line.split() for line in user.run("backfill", "show", "stays").stdout.splitlines()]


def test_an_edit_without_apply_changes_nothing_unless_applied_in_place(user: User) -> None:
    one = user.apply("one")
    (user.folder / "words.py").write_text("TEXT = 'edited'\n")
    user.create("made", 1)
    user.made.wait_state("made", "succeeded")
    assert (user.used("made"), user.wrote("made")) == ([one] * 3, ["one"] * 3)
    (result,) = user.ask("pipelines", "apply", str(user.folder / "flow.py"), "--in-place")["pipelines"]
    assert (result["changed"], result["code_sha256"]) == (True, None)
    (user.folder / "words.py").write_text("TEXT = 'edited again'\n")
    user.create("in-place", 2)
    user.made.wait_state("in-place", "succeeded")
    assert (user.used("in-place"), user.wrote("in-place")) == ([None] * 3, ["edited again"] * 3)


def remove(store: Path, sha256: str) -> str:
    shutil.rmtree(store)
    return f"{store / sha256}.zip cannot be read: No such file or directory: "


def test_what_cannot_be_stored_is_told_before_anything_is_published(
    installation: Installation, tmp_path: Path, store: Path
) -> None:
    """No service is needed for that."""
    user = User(installation, tmp_path, {"RETROFILL_CODE_STORE": str(store)})
    file, table = tmp_path / "flow.py", tmp_path / "table.bin"
    file.write_text(FLOW)
    table.write_bytes(b"0" * 5000)
    store.write_text("a file")
    unwritable = user.run("pipelines", "apply", str(file))
    assert unwritable.stderr.startswith(f"retrofill: the code store {store} cannot be written: File exists: set ")
    user.environment["RETROFILL_CODE_MAX_BYTES"] = "5000"
    too_much = user.run("pipelines", "apply", str(file), "--include", str(table))
    assert "more than RETROFILL_CODE_MAX_BYTES (5,000); the largest file is table.bin (5,000)" in too_much.stderr
    for done in (unwritable, too_much):
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert installation.query("SELECT name FROM pipeline") == []
