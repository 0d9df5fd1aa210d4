"""Environments of drivers: unpacked once a machine, complete or not at all, on top of their pool's Python."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.installation import until
from tests.support.packed import pack_versions

from retrofill_core.settings import Settings
from retrofill_core.user_code import environments
from retrofill_core.user_code.environments import Environments, Packed, Unpacked
from retrofill_core.user_code.store import CodeUnavailable
from retrofill_core.user_code.unpacked import LEFT_BEHIND_SECONDS

CHECK = ("-c", "import retrofill_core.domain.pipeline")
UNPACK = """
import sys
from pathlib import Path
from retrofill_core.settings import Settings
from retrofill_core.user_code.environments import Environments, Packed
settings = Settings(home=Path(sys.argv[1]), code_store=sys.argv[2])
print(Environments(settings, sys.executable).unpack(Packed(sys.argv[3])).python)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Packed]:
    """A code store with one environment."""
    made = tmp_path_factory.mktemp("packed")
    (found,) = pack_versions(made, made / "store", "greeting", ["1.0"])
    return made / "store", Packed(found.sha256, found.python)


@pytest.fixture
def settings(tmp_path: Path, store: tuple[Path, Packed]) -> Settings:
    """With a copy of the store."""
    shutil.copytree(store[0], tmp_path / "store")
    return Settings(home=tmp_path / "home", code_store=tmp_path / "store")


@pytest.fixture
def packed(store: tuple[Path, Packed]) -> Packed:
    return store[1]


def folder(settings: Settings) -> Path:
    return settings.home.absolute() / "code-cache" / "environments"


def there(settings: Settings) -> list[str]:
    """What is unpacked, and what was left behind."""
    return sorted(path.name for path in folder(settings).iterdir() if path.name != "pex")


def run(unpacked: Unpacked, code: str) -> str:
    return subprocess.run([unpacked.python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_its_packages_come_first_and_those_of_the_pools_python_after(settings: Settings, packed: Packed) -> None:
    made = Environments(settings, sys.executable, CHECK)
    assert not made.ready(packed)
    unpacked = made.unpack(packed)
    assert made.ready(packed)
    assert run(unpacked, "import greeting; print(greeting.VERSION)") == "1.0"
    assert run(unpacked, "import pytest; print(pytest.__file__)") == pytest.__file__
    assert run(unpacked, "import sys; print(sys.executable)") == unpacked.python
    before = Path(unpacked.python).stat()
    assert made.unpack(packed) == unpacked
    assert Path(unpacked.python).stat() == before
    name = Path(unpacked.python).parents[1].name
    assert [each.partition(f"{name}.")[0] for each in there(settings)] == [name, "", f"{packed.sha256}.pex"]
    assert os.access(unpacked.file, os.X_OK)


@pytest.mark.long
def test_as_an_executor_runs_it(settings: Settings, packed: Packed) -> None:
    """The file alone is a Python, with the packages of the one that runs it behind its own."""
    file = Environments(settings, sys.executable).unpack(packed).file
    environment = {**os.environ, "PEX_ROOT": str(settings.home / "there"), "PYTHONPATH": str(settings.home)}
    (settings.home / "on_the_path.py").write_text("TEXT = 'PYTHONPATH'\n")
    code = "import greeting, on_the_path, pytest; print(greeting.VERSION, on_the_path.TEXT, pytest.__name__)"
    done = subprocess.run(
        [sys.executable, file, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1.0", "PYTHONPATH", "pytest"]


@pytest.mark.long
def test_processes_of_a_machine_unpack_it_once(settings: Settings, packed: Packed) -> None:
    command = [sys.executable, "-c", UNPACK, str(settings.home), str(settings.code_store), packed.sha256]
    starting = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {each.communicate(timeout=120)[0].strip() for each in starting}
    assert len(said) == 1
    assert run(Unpacked(said.pop(), Path()), "import greeting; print(greeting.VERSION)") == "1.0"
    # One environment, its name, and the file.
    assert len(there(settings)) == 3


@pytest.mark.long
def test_a_killed_one_leaves_nothing_valid_and_blocks_nobody(settings: Settings, packed: Packed) -> None:
    command = [sys.executable, "-c", UNPACK, str(settings.home), str(settings.code_store), packed.sha256]
    killed = subprocess.Popen(command, start_new_session=True)
    until(lambda: any(folder(settings).glob(f"{packed.sha256}-*.*/bin")), "it is unpacking")
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait(30)
    made = Environments(settings, sys.executable)
    made.base  # noqa: B018 - as if it had been asked before
    assert not made.ready(packed)
    (left,) = folder(settings).glob(f"{packed.sha256}-*.*")
    assert run(made.unpack(packed), "import greeting; print(greeting.VERSION)") == "1.0"
    # What it left behind goes once nobody can be writing to it.
    assert left.exists()
    old = time.time() - LEFT_BEHIND_SECONDS - 1
    os.utime(left, (old, old))
    (named,) = (path for path in folder(settings).iterdir() if path.is_symlink())
    os.utime(named.resolve(), (old, old))
    environments._remove_left_behind(folder(settings))
    assert not left.exists()
    assert made.ready(packed)


@pytest.mark.long
def test_two_that_hold_no_lock_make_one_environment(settings: Settings, packed: Packed) -> None:
    made = Environments(settings, sys.executable)
    unpacked = made.unpack(packed)
    target = Path(unpacked.python).parents[1]
    first = target.resolve()
    made._make(packed, target)
    assert target.resolve() == first
    assert len(there(settings)) == 3


def test_a_damaged_file_is_refused(settings: Settings, packed: Packed) -> None:
    file = Path(settings.code_store or "") / f"{packed.sha256}.pex"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CodeUnavailable) as raised:
        Environments(settings, sys.executable).unpack(packed)
    assert str(raised.value).startswith(f"{file} has the hash ")
    assert "delete it and apply the pipeline again" in str(raised.value)
    assert there(settings) == []


def test_a_missing_file_and_store_are_told(settings: Settings, packed: Packed) -> None:
    with pytest.raises(
        CodeUnavailable, match=rf"^{settings.code_store}/{'0' * 64}\.pex cannot be copied to .*: No such "
    ):
        Environments(settings, sys.executable).unpack(Packed("0" * 64))
    without = settings.model_copy(update={"code_store": None})
    with pytest.raises(CodeUnavailable, match="but RETROFILL_CODE_STORE is not set for the run-starter"):
        Environments(without, sys.executable).unpack(packed)


def test_another_python_is_told(settings: Settings, packed: Packed) -> None:
    with pytest.raises(
        CodeUnavailable, match=r"^the environment is packed for Python 3\.9, and the pool's Python .* is "
    ):
        Environments(settings, sys.executable).unpack(Packed(packed.sha256, "3.9"))
    with pytest.raises(
        CodeUnavailable, match=r"^/nowhere/python cannot be used: No such file or directory: set driver_py"
    ):
        Environments(settings, "/nowhere/python").unpack(packed)


def test_a_python_that_cannot_run_a_driver_is_told(settings: Settings, packed: Packed) -> None:
    with pytest.raises(CodeUnavailable, match="ModuleNotFoundError: No module named 'gone': correct its requirements"):
        Environments(settings, sys.executable, ("-c", "import gone")).unpack(packed)
    assert there(settings) == [f"{packed.sha256}.pex"]


def test_one_at_an_address_needs_no_store(settings: Settings, packed: Packed, tmp_path: Path) -> None:
    file = tmp_path / "gpu.pex"
    shutil.copy(tmp_path / "store" / f"{packed.sha256}.pex", file)
    made = Environments(settings.model_copy(update={"code_store": None}), sys.executable)
    with pytest.raises(CodeUnavailable, match=rf"^{file} has the hash {packed.sha256}, not {'0' * 64}: "):
        made.unpack(Packed("0" * 64, address=str(file)))
    unpacked = made.unpack(Packed(packed.sha256, address=str(file)))
    assert run(unpacked, "import greeting; print(greeting.VERSION)") == "1.0"
