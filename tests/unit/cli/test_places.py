"""``places release``: what belongs to intervals is shown and given up, and nothing else is touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.terminal import Cli, cli

from retrofill.outputs.kept import AREA, MARKER, put_marker

__all__ = ["cli"]
INTERVAL = {"interval_start": "2024-01-01T00:00:00+00:00", "interval_end": "2024-01-02T00:00:00+00:00"}
OWNED = {"pipeline": "p", **INTERVAL, "run": "7-abc"}
WHOSE = "the interval 2024-01-01 of pipeline p, which run 7 has"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A table with a published partition, a staged one, one that a task writes and one of somebody else."""
    for name, marker in {"day=1": OWNED, "day=2": {"pipeline": "somebody else's"}}.items():
        (tmp_path / "t" / name).mkdir(parents=True)
        put_marker(tmp_path / "t" / name, marker)
    for name, folder in {"day=3": "25.publish-0", "day=4": "25.writing-1"}.items():
        new = tmp_path / "t" / AREA / f"{name}@7-abc" / folder / "new"
        new.mkdir(parents=True)
        put_marker(new, OWNED)
        put_marker(new.parent, OWNED)
    return tmp_path / "t"


def files(root: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def test_what_would_be_given_up_is_shown(root: Path, cli: Cli) -> None:
    before = files(root)
    done = cli("places", "release", str(root), "--staged", "--dry-run")
    assert sorted(done.out.splitlines()) == [
        f"{root}/day=1 belongs to {WHOSE} published there",
        f"{root}/day=3 belongs to {WHOSE} staged there",
    ]
    assert files(root) == before


@pytest.mark.parametrize("spelling", ["{}", "{}/", "file:{}", "{}/day=1"])
def test_what_is_published_is_given_up_and_still_names_its_run(root: Path, cli: Cli, spelling: str) -> None:
    before = files(root)
    (given_up,) = cli("places", "release", spelling.format(root), "--yes", "--json").document
    about = {"pipeline": "p", "start": INTERVAL["interval_start"], "end": INTERVAL["interval_end"]}
    assert given_up == {"place": f"{root}/day=1", **about, "run_id": "7", "staged": False}
    marker = str(root / "day=1" / MARKER)
    assert files(root) == {**before, marker: json.dumps({**OWNED, "place": None})}
    assert cli("places", "release", str(root)).out == "nothing there belongs to an interval\n"


def test_a_relative_path_is_that_of_the_working_directory(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    assert cli("places", "release", "day=1", "--yes").out == f"{root}/day=1 belonged to {WHOSE} published there\n"


def test_what_is_staged_is_dropped_on_request(root: Path, cli: Cli) -> None:
    assert len(cli("places", "release", str(root), "--staged", "--yes").out.splitlines()) == 2
    assert not (root / AREA / "day=3@7-abc" / "25.publish-0").exists()
    assert (root / AREA / "day=4@7-abc" / "25.writing-1").exists(), "its task is told when it is done"
