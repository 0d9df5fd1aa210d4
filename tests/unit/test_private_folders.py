"""Folders with secrets are removed with their process, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from retrofill.system.files import PrivateFolder, sweep

# Makes a folder with a secret, says so, and waits.
OWNER = """
import pathlib, sys
from retrofill.system.files import PrivateFolder
folder = PrivateFolder(pathlib.Path(sys.argv[1]))
(folder.path / "spark.properties").write_text("spark.password secret")
print(folder.path, flush=True)
sys.stdin.read()
"""


def owner(place: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.fixture
def alive(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    process, path = owner(tmp_path)
    yield process, path
    process.kill()
    process.communicate()


def test_a_folder_is_private_and_removed_at_its_end(tmp_path: Path) -> None:
    made = PrivateFolder(tmp_path)
    with made as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "nested").mkdir()
    made.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("how", ["another folder", "a sweep"])
def test_the_folder_of_a_killed_process_goes_with_the_next_that_looks(
    tmp_path: Path, number: signal.Signals, how: str
) -> None:
    process, path = owner(tmp_path)
    process.send_signal(number)
    process.communicate()
    assert (path / "spark.properties").is_file()
    if how == "a sweep":
        sweep(tmp_path)
    else:
        PrivateFolder(tmp_path).remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_a_process_that_lives_stays(tmp_path: Path, alive: tuple[subprocess.Popen[str], Path]) -> None:
    process, path = alive
    with PrivateFolder(tmp_path) as other:
        sweep(tmp_path)
        assert other.is_dir() and (path / "spark.properties").is_file()
    os.kill(process.pid, signal.SIGSTOP)
    sweep(tmp_path)
    assert path.is_dir()


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    (tmp_path / "retrofill-private-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "retrofill-private-file").touch()
    sweep(tmp_path)
    sweep(tmp_path / "missing")
    assert len(list(tmp_path.iterdir())) == 4 and (tmp_path / "elsewhere" / "file").exists()
