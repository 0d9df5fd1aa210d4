"""Code stores at fsspec addresses: errors in one line, and file systems that are no object stores."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest

from retrofill_core.settings import Settings
from retrofill_core.user_code import remote_store
from retrofill_core.user_code.archive import Archive
from retrofill_core.user_code.remote_store import RemoteStore
from retrofill_core.user_code.store import CodeStore, CodeStoreFails, CodeUnavailable, FolderStore, open_store

ARCHIVE = Archive(b"an archive", 1, 10)
SECRET = "hunter2-hunter2"


def opened(address: str, options: str = "{}") -> CodeStore:
    store = open_store(Settings.model_validate({"code_store": address, "code_store_options": options}))
    assert store is not None
    return store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def renaming(folder: Path) -> RemoteStore:
    """A store on a file system that shows half-written files, through fsspec."""
    return RemoteStore(f"local://{folder}", {})


def test_a_directory_needs_no_fsspec(folder: Path) -> None:
    for address in (str(folder), f"file://{folder}"):
        store = opened(address)
        assert isinstance(store, FolderStore)
        assert store.path("x") == folder / "x.zip"


def test_files_are_renamed_into_place(renaming: RemoteStore, folder: Path) -> None:
    renaming.put(ARCHIVE)
    file = folder / f"{ARCHIVE.sha256}.zip"
    before = file.stat()
    renaming.put(ARCHIVE)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert renaming.get(ARCHIVE.sha256) == ARCHIVE.content
    assert list(folder.iterdir()) == [file]


def test_a_damaged_file_is_told_and_replaced(renaming: RemoteStore, folder: Path) -> None:
    renaming.put(ARCHIVE)
    (folder / f"{ARCHIVE.sha256}.zip").write_bytes(b"an arch")
    with pytest.raises(CodeUnavailable, match=rf"^local://{folder}/{ARCHIVE.sha256}\.zip has the hash "):
        renaming.get(ARCHIVE.sha256)
    renaming.put(ARCHIVE)
    assert renaming.get(ARCHIVE.sha256) == ARCHIVE.content


def test_a_missing_file_is_told(renaming: RemoteStore, folder: Path) -> None:
    with pytest.raises(CodeUnavailable, match=rf"^local://{folder}/{ARCHIVE.sha256}\.zip does not exist: restore it"):
        renaming.get(ARCHIVE.sha256)


def test_what_fails_leaves_no_draft_and_is_tried_for_a_while(
    renaming: RemoteStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory with the archive's name cannot be replaced by a file."""
    monkeypatch.setattr(remote_store, "PUT_SECONDS", 0.5)
    (folder / f"{ARCHIVE.sha256}.zip" / "x").mkdir(parents=True)
    with pytest.raises(CodeStoreFails, match=rf"^the code store local://{folder} cannot be written: .*--in-place$"):
        renaming.put(ARCHIVE)
    assert [path.name for path in folder.iterdir()] == [f"{ARCHIVE.sha256}.zip"]


@pytest.mark.parametrize(("address", "extra"), [("gs://bucket/x", "gcs"), ("abfs://c@a.dfs.core.windows.net", "azure")])
def test_a_library_that_is_missing_is_named_by_its_extra(address: str, extra: str) -> None:
    line = rf"its library is not installed here \(pip install 'retrofill\[{extra}\]'\): "
    with pytest.raises(CodeStoreFails, match=f"^the code store {address} cannot be written: {line}"):
        opened(address).put(ARCHIVE)
    with pytest.raises(CodeUnavailable, match=f"^{address}/{ARCHIVE.sha256}.zip cannot be read: {line}"):
        opened(address).get(ARCHIVE.sha256)


def test_an_unknown_address_is_told() -> None:
    with pytest.raises(CodeStoreFails, match=r"^the code store nowhere://x cannot be written: .*nowhere.*: set RETRO"):
        opened("nowhere://x").put(ARCHIVE)


@pytest.mark.long
def test_an_error_shows_no_secret() -> None:
    """The library quotes an endpoint that is none."""
    options = json.dumps({"key": "k", "secret": SECRET, "client_kwargs": {"endpoint_url": f"not {SECRET}"}})
    with pytest.raises(CodeStoreFails, match=r"Invalid endpoint: not \*{3}: ") as raised:
        opened("s3://bucket", options).put(ARCHIVE)
    assert SECRET not in "".join(traceback.format_exception(raised.value))
