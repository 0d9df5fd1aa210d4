"""Commands where there is no stack."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.support.terminal import cli

__all__ = ["cli", "nowhere"]


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """No stack in this folder, and no endpoint set."""
    for name in [name for name in os.environ if name.startswith("RETROFILL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
