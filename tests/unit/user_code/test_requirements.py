"""Requirements files, with all that they include."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retrofill_core.user_code.packing import NoRequirements, is_complete, read_requirements


def test_files_that_are_included_are_read_too(tmp_path: Path) -> None:
    texts = {
        "requirements.txt": "-r more/base.txt\nlater==1\n--constraint=limits.txt\n-r https://example.com/x.txt\n",
        "more/base.txt": "-rdeeper.txt\nearly==1\n",
        "more/deeper.txt": "-r ../requirements.txt\ndeep==1\n",
        "limits.txt": "deep<2\n",
    }
    (tmp_path / "more").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert read_requirements(tmp_path / "requirements.txt") == texts


@pytest.mark.parametrize("text", ["-r gone.txt\n", "--requirement=gone.txt\n", "-c gone.txt\n"])
def test_a_missing_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    line = f"{tmp_path / 'gone.txt'} cannot be read: No such file or directory"
    with pytest.raises(NoRequirements, match=f"^{re.escape(line)}$"):
        read_requirements(tmp_path / "requirements.txt")


def test_what_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_bytes(b"\xff")
    with pytest.raises(NoRequirements, match=r"it is not UTF-8 text$"):
        read_requirements(tmp_path / "requirements.txt")


@pytest.mark.parametrize(
    ("line", "complete"),
    [
        ("numpy==2.1", True),
        ("numpy @ https://example.com/numpy.whl", True),
        ("--find-links https://example.com/wheels", True),
        ("# ./commented", True),
        ("numpy==2.1  # as in /opt/other", True),
        ("--index-url https://example.com/simple", True),
        ("git+https://example.com/mine.git@1a2b3c", True),
        ("./mine", False),
        ("wheels/mine", False),
        ("mine-1.0-py3-none-any.whl", False),
        ("mine-1.0.tar.gz --hash=sha256:00", False),
        ("  -e ../mine", False),
        ("--editable ../mine", False),
        ("/opt/wheels/mine.whl", False),
        ("mine @ file:///opt/mine", False),
        ("--find-links wheels", False),
        ("-f wheels", False),
    ],
)
def test_what_lies_on_this_machine_may_change_without_the_file(line: str, complete: bool) -> None:
    assert is_complete({"requirements.txt": f"other==1\n{line}\n"}) is complete
