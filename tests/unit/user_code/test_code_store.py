"""The code store and what drivers unpack from it: complete or absent, and never other code than
requested.
"""

from __future__ import annotations

import fcntl
import io
import os
import signal
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from retrofill_core.settings import Settings
from retrofill_core.user_code import unpacked as module
from retrofill_core.user_code.archive import Archive, build
from retrofill_core.user_code.store import CannotUnpackHere, CodeStoreFails, CodeUnavailable, FolderStore, open_store
from retrofill_core.user_code.unpacked import LEFT_BEHIND_SECONDS, unpacked


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    (tmp_path / "flow.py").write_text("ONE = 1\n")
    return build({"flow.py": tmp_path / "flow.py", "package/inner.py": tmp_path / "flow.py"}, 1000)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", code_store=tmp_path / "store")


@pytest.fixture
def store(settings: Settings) -> FolderStore:
    store = open_store(settings)
    assert isinstance(store, FolderStore)
    return store


def test_what_is_put_is_got(store: FolderStore, archive: Archive) -> None:
    for _ in range(2):
        store.put(archive)
        assert store.get(archive.sha256) == archive.content
    assert [path.name for path in store.path("x").parent.iterdir()] == [f"{archive.sha256}.zip"]


def test_a_damaged_archive_is_refused_and_put_again(store: FolderStore, archive: Archive) -> None:
    store.put(archive)
    store.path(archive.sha256).write_bytes(archive.content[:-1])
    with pytest.raises(CodeUnavailable) as raised:
        store.get(archive.sha256)
    assert str(raised.value).startswith(f"{store.path(archive.sha256)} has the hash ")
    assert "apply the same code again" in str(raised.value)
    store.put(archive)
    assert store.get(archive.sha256) == archive.content


def test_a_missing_archive_is_named(store: FolderStore) -> None:
    with pytest.raises(CodeUnavailable) as raised:
        store.get("0" * 64)
    assert str(raised.value).startswith(f"{store.path('0' * 64)} cannot be read: No such file or directory: restore ")


def test_a_store_that_cannot_be_written(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CodeStoreFails, match=r"the code store .*/file/store cannot be written: Not a directory: set "):
        FolderStore(tmp_path / "file" / "store").put(archive)


def test_unpacked_once(settings: Settings, store: FolderStore, archive: Archive) -> None:
    store.put(archive)
    folder = unpacked(settings, archive.sha256)
    assert folder == (settings.home / "code-cache" / archive.sha256).absolute()
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py")) == ["flow.py", "package/inner.py"]
    assert (folder / "flow.py").stat().st_mode & 0o222 == 0
    store.path(archive.sha256).unlink()
    assert unpacked(settings, archive.sha256) == folder


def test_drivers_that_unpack_at_once_get_the_same(settings: Settings, store: FolderStore, archive: Archive) -> None:
    store.put(archive)
    there = Barrier(8)

    def unpack(_: int) -> Path:
        there.wait()
        return unpacked(settings, archive.sha256)

    with ThreadPoolExecutor(8) as threads:
        folders = set(threads.map(unpack, range(8)))
    assert len(folders) == 1
    assert [path.name for path in (settings.home / "code-cache").iterdir()] == [archive.sha256]


def test_one_that_is_faster_wins(
    settings: Settings, store: FolderStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver, which waited in vain for this one, creates the folder before its rename."""
    monkeypatch.setattr("retrofill_core.user_code.unpacked.LOCK_SECONDS", 0.1)
    store.put(archive)
    rename = Path.rename

    def late(self: Path, target: Any) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        other = unpacked(settings, archive.sha256)
        (other / "first").touch()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    folder = unpacked(settings, archive.sha256)
    assert (folder / "first").exists()
    assert [path.name for path in folder.parent.iterdir()] == [archive.sha256]


def test_what_a_killed_driver_left_does_no_harm_and_goes_in_time(
    settings: Settings, store: FolderStore, archive: Archive
) -> None:
    store.put(archive)
    cache = settings.home / "code-cache"
    for name in ("old", "new"):
        (cache / f".{archive.sha256}.{name}").mkdir(parents=True)
        (cache / f".{archive.sha256}.{name}" / "flow.py").write_text("half")
    before = time.time() - LEFT_BEHIND_SECONDS - 10
    os.utime(cache / f".{archive.sha256}.old", (before, before))
    assert (unpacked(settings, archive.sha256) / "flow.py").read_text() == "ONE = 1\n"
    assert {path.name for path in cache.iterdir()} == {archive.sha256, f".{archive.sha256}.new"}


# A driver that is killed when everything is unpacked but nothing is in place yet.
KILLED = """
import os, signal, sys
from pathlib import Path
from retrofill_core.settings import Settings
from retrofill_core.user_code.unpacked import unpacked
Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
unpacked(Settings(home=sys.argv[1], code_store=sys.argv[2]), sys.argv[3])
"""


def test_what_a_killed_driver_unpacked_is_not_taken_for_whole(
    settings: Settings, store: FolderStore, archive: Archive
) -> None:
    store.put(archive)
    given = [str(settings.home), str(settings.code_store), archive.sha256]
    done = subprocess.run([sys.executable, "-c", KILLED, *given], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    cache = settings.home / "code-cache"
    left = {path.name for path in cache.iterdir()}
    assert len(left) == 2 and archive.sha256 not in left
    assert (unpacked(settings, archive.sha256) / "package" / "inner.py").is_file()


def test_a_driver_that_hangs_with_the_lock_holds_up_nobody_for_long(
    settings: Settings, store: FolderStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.3)
    store.put(archive)
    (settings.home / "code-cache").mkdir(parents=True)
    with (settings.home / "code-cache" / f".{archive.sha256}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert (unpacked(settings, archive.sha256) / "flow.py").is_file()


def test_what_is_no_archive_is_told(settings: Settings, store: FolderStore) -> None:
    text = Archive(b"no zip", 0, 0)
    store.put(text)
    with pytest.raises(CodeUnavailable, match=r"cannot be unpacked into .*: File is not a zip file: apply "):
        unpacked(settings, text.sha256)
    assert list((settings.home / "code-cache").iterdir()) == []


def test_a_cache_that_cannot_be_written(
    settings: Settings, store: FolderStore, archive: Archive, tmp_path: Path
) -> None:
    store.put(archive)
    (tmp_path / "file").write_text("")
    beside = settings.model_copy(update={"code_cache": tmp_path / "file" / "cache"})
    with pytest.raises(CannotUnpackHere, match=r"cannot be unpacked into .*Not a directory.*RETROFILL_CODE_CACHE"):
        unpacked(beside, archive.sha256)


def test_drivers_without_a_store_say_so(tmp_path: Path) -> None:
    with pytest.raises(CodeUnavailable, match=r"RETROFILL_CODE_STORE is not set for its driver"):
        unpacked(Settings(home=tmp_path), "0" * 64)


def test_a_fault_of_the_archive_is_not_one_of_this_machine(settings: Settings, store: FolderStore) -> None:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as zipped:
        zipped.writestr("conf", "a file")
        zipped.writestr("conf/x.ini", "in a directory")
    both = Archive(written.getvalue(), 2, 20)
    store.put(both)
    with pytest.raises(CodeUnavailable, match=r"cannot be unpacked into .*: apply the pipeline again") as raised:
        unpacked(settings, both.sha256)
    assert not isinstance(raised.value, CannotUnpackHere)
