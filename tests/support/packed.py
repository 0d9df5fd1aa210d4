"""Packed environments of tiny packages, in a code store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from retrofill_core.domain.data import PackedEnvironment
from retrofill_core.settings import Settings
from retrofill_core.user_code.packing import pack
from tests.support.wheels import configured, make_wheel


def pack_versions(folder: Path, store: Path, name: str, versions: Sequence[str]) -> list[PackedEnvironment]:
    """One environment for each version of a package, which it has as ``VERSION``."""
    found = []
    with pytest.MonkeyPatch.context() as patched:
        for variable, value in configured(folder / "index", folder / "pex").items():
            patched.setenv(variable, value)
        for version in versions:
            make_wheel(folder / "index", name, version, f"VERSION = {version!r}\n")
            (folder / "requirements.txt").write_text(f"{name}=={version}\n")
            found.append(pack(Settings(code_store=store), folder / "requirements.txt"))
    return found
