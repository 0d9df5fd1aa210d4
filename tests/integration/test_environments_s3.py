"""Packed environments by way of a real S3-compatible server: complete or absent, whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.installation import until
from tests.support.proxy import Proxy
from tests.support.s3 import BUCKET, S3, s3_server
from tests.support.wheels import configured, make_wheel

from retrofill_core.settings import Settings
from retrofill_core.user_code.environments import Environments, Packed
from retrofill_core.user_code.store import CodeUnavailable

pytestmark = [pytest.mark.servers, pytest.mark.long]
SIZE = 4_000_000
PACK = """
import sys
from pathlib import Path
from retrofill_core.settings import Settings
from retrofill_core.user_code.packing import pack
print(pack(Settings(), Path(sys.argv[1])).sha256)
"""
UNPACK = """
import sys
from retrofill_core.settings import Settings
from retrofill_core.user_code.environments import Environments, Packed
print(Environments(Settings(), sys.executable).unpack(Packed(sys.argv[1])).python)
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One package, too large to be sent at once, with content of its own."""
    make_wheel(tmp_path / "index", "greeting", "1.0", f"DATA = {os.urandom(SIZE // 2).hex()!r}\n")
    for name, value in configured(tmp_path / "index", tmp_path / "pex").items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "requirements.txt"
    file.write_text("greeting==1.0\n")
    return file


def start(code: str, argument: object, environment: dict[str, str], home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(argument)],
        env={**os.environ, **environment, "RETROFILL_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
    )


def said(*processes: subprocess.Popen[str]) -> list[str]:
    found = [process.communicate(timeout=180)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return found


def test_a_killed_apply_leaves_nothing_and_hosts_get_what_the_next_one_packs(
    s3: S3, requirements: Path, tmp_path: Path
) -> None:
    with Proxy(("127.0.0.1", s3.port)) as line:
        line.delay = 0.02
        killed = start(PACK, requirements, s3.environment(line.port), tmp_path)
        until(lambda: line.passed > SIZE // 4, "a quarter is uploaded", seconds=120)
        killed.send_signal(signal.SIGKILL)
        assert killed.wait(30) == -signal.SIGKILL
        assert line.passed < SIZE
    assert not list((s3.bucket / "flows").glob("*.p*"))
    (sha256,) = said(start(PACK, requirements, s3.environment(), tmp_path))
    assert {path.suffix for path in (s3.bucket / "flows").glob("*.p*")} == {".pex", ".packed"}

    # Two machines at once.
    homes = [tmp_path / "one", tmp_path / "two"]
    pythons = said(*[start(UNPACK, sha256, s3.environment(), home) for home in homes])
    for home, python in zip(homes, pythons, strict=True):
        assert Path(python).is_relative_to(home)
        subprocess.run([python, "-c", f"import greeting; assert len(greeting.DATA) == {SIZE}"], check=True)

    (s3.bucket / "flows" / f"{sha256}.pex").unlink()
    given = {name.removeprefix("RETROFILL_").lower(): value for name, value in s3.environment().items()}
    settings = Settings.model_validate({**given, "home": tmp_path / "three"})
    with pytest.raises(CodeUnavailable, match=rf"^s3://{BUCKET}/flows/{sha256}\.pex does not exist: restore it"):
        Environments(settings, sys.executable).unpack(Packed(sha256))
    assert said(start(PACK, requirements, s3.environment(), tmp_path)) == [sha256]
    Environments(settings, sys.executable).unpack(Packed(sha256))
