"""Environments are packed by a real pex and pip from a folder of wheels, and only when something changed."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.tiers import some
from tests.support.wheels import configured, make_wheel

from retrofill.errors import UserError
from retrofill_core.settings import Settings
from retrofill_core.user_code.packing import pack


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's package index, which pip knows by the user's own configuration."""
    folder = tmp_path / "index"
    for version in ("1.0", "2.0"):
        make_wheel(folder, "greeting", version, f"TEXT = {version!r}\n", needs="words")
    make_wheel(folder, "words", "1.0", "ALL = []\n")
    for name, value in configured(folder, tmp_path / "pex").items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", code_store=tmp_path / "store")


@pytest.fixture
def requirements(tmp_path: Path, index: Path) -> Path:
    file = tmp_path / "requirements.txt"
    file.write_text("greeting==1.0\n")
    return file


def stored(settings: Settings) -> list[str]:
    return sorted(path.name for path in Path(settings.code_store or "").iterdir())


def test_the_same_requirements_are_packed_once(
    settings: Settings, requirements: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    first = pack(settings, requirements, say=said.append)
    assert [line.split(" for ")[0] for line in said] == [f"packing {requirements}"]
    assert first.python == f"{sys.version_info[0]}.{sys.version_info[1]}"
    before = stored(settings)
    assert len(before) == 2
    assert f"{first.sha256}.pex" in before
    with monkeypatch.context() as changed:
        # Nothing could be built: there is no index any more.
        changed.setenv("PIP_FIND_LINKS", "/nowhere")
        changed.setenv("PEX_ROOT", str(requirements.parent / "other"))
        assert pack(settings, requirements, say=said.append) == first
        assert len(said) == 1, "nothing was packed"
    requirements.write_text("greeting==2.0\n")
    second = pack(settings, requirements)
    assert second.sha256 != first.sha256
    requirements.write_text("greeting==1.0\n")
    assert pack(settings, requirements) == first


@pytest.mark.long
def test_a_pack_is_the_same_everywhere(
    settings: Settings, requirements: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that two who apply the same do not store it twice."""
    first = pack(settings, requirements)
    monkeypatch.setenv("PEX_ROOT", str(tmp_path / "other"))
    assert pack(settings.model_copy(update={"code_store": str(tmp_path / "store-2")}), requirements) == first


@pytest.mark.long
def test_an_environment_that_was_deleted_is_packed_again(settings: Settings, requirements: Path) -> None:
    first = pack(settings, requirements)
    (Path(settings.code_store or "") / f"{first.sha256}.pex").unlink()
    assert pack(settings, requirements) == first
    assert f"{first.sha256}.pex" in stored(settings)


@pytest.mark.long
def test_what_lies_on_this_machine_is_looked_at_each_time(settings: Settings, requirements: Path, index: Path) -> None:
    requirements.write_text(f"{index / 'words-1.0-py3-none-any.whl'}\n")
    first = pack(settings, requirements)
    make_wheel(index, "words", "1.0", "ALL = ['changed']\n")
    assert pack(settings, requirements).sha256 != first.sha256


# Killed when a file is written completely and has no name yet: that of the packages, or of what they were made of.
KILLED = """
import os, signal, sys
from pathlib import Path
from retrofill_core.settings import Settings
from retrofill_core.user_code.packing import pack
replace = Path.replace
def killed(draft, target):
    if target.suffix == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(draft, target)
Path.replace = killed
pack(Settings(code_store=sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".pex", ".packed"])
def test_what_a_killed_one_left_is_not_used(settings: Settings, requirements: Path, suffix: str) -> None:
    code_store = settings.code_store or ""
    killed = subprocess.run([sys.executable, "-c", KILLED, code_store, str(requirements), suffix], check=False)
    assert killed.returncode == -signal.SIGKILL
    left = [name for name in stored(settings) if not name.startswith(".")]
    assert [Path(name).suffix for name in left] == ([] if suffix == ".pex" else [".pex"])
    made = pack(settings, requirements)
    assert {f"{made.sha256}.pex", *left} <= set(stored(settings))


ABSENT = ("nowhere==1\n", "Could not find a version that satisfies the requirement nowhere==1")
OTHER_PYTHON = (
    "{index}/words-1.0-cp27-cp27m-win32.whl\n",
    "words-1.0-cp27-cp27m-win32.whl is not a supported wheel on this platform",
)
NO_REQUIREMENT = (
    "words 1.0\n",
    "Problem parsing 'words 1.0' as a requirement: Expected semicolon (after name with no version specifier) or end",
)
DAMAGED = ("{index}/damaged-1.0-py3-none-any.whl\n", "zipfile.BadZipFile: File is not a zip file")
CONFLICT = (
    "words==1.0\nwants\n",
    "Cannot install -r {file} (line 2) and words==1.0 because these package versions have conflicting dependencies",
)
NO_OPTION = ("--nonsense\n", "Invalid requirement: --nonsense")


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "line"),
    some([ABSENT, OTHER_PYTHON, NO_REQUIREMENT, DAMAGED, CONFLICT, NO_OPTION], ABSENT, NO_REQUIREMENT),
)
def test_what_cannot_be_packed_is_told_in_one_line(
    settings: Settings, requirements: Path, index: Path, text: str, line: str
) -> None:
    shutil.copy(index / "words-1.0-py3-none-any.whl", index / "words-1.0-cp27-cp27m-win32.whl")
    (index / "damaged-1.0-py3-none-any.whl").write_bytes(b"no zip")
    make_wheel(index, "wants", "1.0", "", needs="words>=2")
    requirements.write_text(text.format(index=index))
    with pytest.raises(UserError) as raised:
        pack(settings, requirements)
    message, _, log = str(raised.value).partition(": correct it; pip's output is in ")
    assert message == f"{requirements} cannot be packed: {line.format(file=requirements)}"
    # Without what the line leaves out, some could not be corrected.
    assert line.format(file=requirements) in Path(log).read_text()
    Path(log).unlink()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("-r gone.txt\n", r".*/gone\.txt cannot be read: No such file or directory"),
        (None, r".*/requirements\.txt cannot be read: No such file or directory"),
    ],
)
def test_a_missing_file_is_told_in_one_line(
    settings: Settings, requirements: Path, text: str | None, line: str
) -> None:
    requirements.unlink() if text is None else requirements.write_text(text)
    with pytest.raises(UserError, match=f"^{line}$"):
        pack(settings, requirements)


def test_an_interpreter_that_is_none_is_told(settings: Settings, requirements: Path) -> None:
    with pytest.raises(
        UserError, match=r"^/nowhere/python cannot be used: No such file or directory: give --python an "
    ):
        pack(settings, requirements, "/nowhere/python")
    with pytest.raises(UserError, match=r"^/bin/true cannot be used: it is no Python "):
        pack(settings, requirements, "/bin/true")


def test_it_needs_a_store(settings: Settings, requirements: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^--requirements needs a code store: set RETROFILL_CODE_STORE to "):
        pack(settings.model_copy(update={"code_store": None}), requirements)
    (tmp_path / "file").write_text("")
    away = settings.model_copy(update={"code_store": str(tmp_path / "file" / "store")})
    with pytest.raises(UserError, match=re.escape(f"{tmp_path}/file/store")):
        pack(away, requirements)
