"""The code store on a real S3-compatible server: complete or absent, whoever is killed and whatever breaks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.installation import until
from tests.support.proxy import Proxy
from tests.support.s3 import BUCKET, S3, SECRET, s3_server

from retrofill_core.settings import Settings
from retrofill_core.user_code import remote_store
from retrofill_core.user_code.archive import Archive, build
from retrofill_core.user_code.store import CodeStore, CodeStoreFails, CodeUnavailable, open_store

pytestmark = pytest.mark.servers
SIZE = 4_000_000
UPLOAD = """
import sys
from pathlib import Path
from retrofill_core.settings import Settings
from retrofill_core.user_code.archive import Archive
from retrofill_core.user_code.store import open_store
open_store(Settings()).put(Archive(Path(sys.argv[1]).read_bytes(), 1, 1))
"""
UNPACK = """
import sys
from retrofill_core.settings import Settings
from retrofill_core.user_code.unpacked import unpacked
sys.stdin.read()
print(unpacked(Settings(), sys.argv[1]))
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """One of its own, too large to be sent at once."""
    (tmp_path / "data.bin").write_bytes(os.urandom(SIZE))
    (tmp_path / "flow.py").write_text("ONE = 1\n")
    return build({name: tmp_path / name for name in ("data.bin", "flow.py")}, 2 * SIZE)


def settings(environment: dict[str, str], home: Path = Path(".retrofill")) -> Settings:
    fields = {name.removeprefix("RETROFILL_").lower(): value for name, value in environment.items()}
    return Settings.model_validate({**fields, "home": home})


def opened(environment: dict[str, str]) -> CodeStore:
    store = open_store(settings(environment))
    assert store is not None
    return store


def start(code: str, argument: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, argument],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def go(process: subprocess.Popen[str]) -> None:
    """Let it begin: all that are started do so together."""
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None


def test_what_is_put_is_got_and_not_uploaded_again(s3: S3, archive: Archive) -> None:
    store = opened(s3.environment())
    store.put(archive)
    before = s3.object(archive.sha256).stat()
    store.put(archive)
    after = s3.object(archive.sha256).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert store.get(archive.sha256) == archive.content


@pytest.mark.long
def test_a_damaged_object_is_refused_and_put_again(s3: S3, archive: Archive) -> None:
    store = opened(s3.environment())
    store.put(archive)
    s3.object(archive.sha256).write_bytes(archive.content[:-1] + b"x")
    with pytest.raises(CodeUnavailable) as raised:
        store.get(archive.sha256)
    assert str(raised.value).startswith(f"s3://{BUCKET}/flows/{archive.sha256}.zip has the hash ")
    assert "apply the same code again" in str(raised.value)
    store.put(archive)
    assert store.get(archive.sha256) == archive.content


def test_a_missing_object_is_named(s3: S3) -> None:
    with pytest.raises(CodeUnavailable, match=rf"^s3://{BUCKET}/flows/{'0' * 64}\.zip does not exist: restore it, or "):
        opened(s3.environment()).get("0" * 64)


@pytest.mark.parametrize("wrong", [{"key": "AKIAOTHER"}, {"secret": f"{SECRET}-other"}])
def test_a_wrong_login_is_told_at_once_and_not_shown(s3: S3, archive: Archive, wrong: dict[str, Any]) -> None:
    store = opened(s3.environment(**wrong))
    for ask in (lambda: store.put(archive), lambda: store.get(archive.sha256)):
        with pytest.raises((CodeStoreFails, CodeUnavailable)) as raised:
            ask()
        assert f"s3://{BUCKET}/flows" in str(raised.value)
        assert "\n" not in str(raised.value)
        assert SECRET not in "".join(traceback.format_exception(raised.value))
    assert not s3.object(archive.sha256).exists()


def test_a_missing_bucket_is_told(s3: S3, archive: Archive) -> None:
    store = opened({**s3.environment(), "RETROFILL_CODE_STORE": "s3://nowhere/flows"})
    with pytest.raises(CodeStoreFails, match=r"^the code store s3://nowhere/flows cannot be written: .*bucket"):
        store.put(archive)


@pytest.mark.long
def test_a_killed_upload_leaves_nothing(s3: S3, archive: Archive, tmp_path: Path) -> None:
    file = tmp_path / "archive.zip"
    file.write_bytes(archive.content)
    with Proxy(("127.0.0.1", s3.port)) as line:
        line.delay = 0.02
        uploader = start(UPLOAD, str(file), **s3.environment(line.port))
        until(lambda: line.passed > SIZE // 4, "a quarter is uploaded")
        uploader.send_signal(signal.SIGKILL)
        assert uploader.wait(30) == -signal.SIGKILL
        assert line.passed < SIZE
    # The server has noticed: it has no open connection and no part of the object.
    store = opened(s3.environment())
    with pytest.raises(CodeUnavailable, match="does not exist"):
        store.get(archive.sha256)
    store.put(archive)
    assert store.get(archive.sha256) == archive.content


@pytest.mark.long
def test_a_cut_connection_is_tried_again(s3: S3, archive: Archive) -> None:
    opened(s3.environment()).put(archive)
    with Proxy(("127.0.0.1", s3.port)) as line, ThreadPoolExecutor(1) as thread:
        line.delay = 0.02
        got = thread.submit(opened(s3.environment(line.port)).get, archive.sha256)
        until(lambda: line.passed > SIZE // 4, "a quarter is fetched")
        line.cut()
        until(lambda: line.refused > 0, "it is tried again")
        line.mend()
        assert got.result(60) == archive.content


@pytest.mark.long
def test_a_server_that_is_gone_is_told_in_time(s3: S3, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_store, "GET_SECONDS", 1.0)
    with Proxy(("127.0.0.1", s3.port)) as line:
        line.cut()
        with pytest.raises(CodeUnavailable) as raised:
            opened(s3.environment(line.port)).get(archive.sha256)
        assert line.refused > 1
    assert str(raised.value).startswith(f"s3://{BUCKET}/flows/{archive.sha256}.zip cannot be read: ")
    assert "\n" not in str(raised.value)


@pytest.mark.long
def test_processes_of_a_machine_fetch_it_once(s3: S3, archive: Archive, tmp_path: Path) -> None:
    opened(s3.environment()).put(archive)
    home = tmp_path / "home"
    with Proxy(("127.0.0.1", s3.port)) as line:
        environment = {**s3.environment(line.port), "RETROFILL_HOME": str(home)}
        drivers = [start(UNPACK, archive.sha256, **environment) for _ in range(3)]
        for driver in drivers:
            go(driver)
        said = [driver.communicate(timeout=120)[0].strip() for driver in drivers]
        assert set(said) == {str(home / "code-cache" / archive.sha256)}
        assert SIZE < line.passed < 1.5 * SIZE
    assert (Path(said[0]) / "data.bin").stat().st_size == SIZE
    assert [path.name for path in (home / "code-cache").iterdir()] == [archive.sha256]


@pytest.mark.long
def test_a_killed_fetch_leaves_nothing_and_blocks_nobody(s3: S3, archive: Archive, tmp_path: Path) -> None:
    opened(s3.environment()).put(archive)
    home = tmp_path / "home"
    with Proxy(("127.0.0.1", s3.port)) as line:
        line.delay = 0.02
        driver = start(UNPACK, archive.sha256, **s3.environment(line.port), RETROFILL_HOME=str(home))
        go(driver)
        until(lambda: line.passed > SIZE // 4, "a quarter is fetched")
        waiting = start(UNPACK, archive.sha256, **s3.environment(), RETROFILL_HOME=str(home))
        go(waiting)
        driver.send_signal(signal.SIGKILL)
        driver.wait(30)
        assert not (home / "code-cache" / archive.sha256).exists()
        waiting.communicate(timeout=120)
    assert (home / "code-cache" / archive.sha256 / "data.bin").stat().st_size == SIZE
