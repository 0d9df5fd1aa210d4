"""Commands without a stack."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.support.terminal import cli

__all__ = ["cli", "nowhere"]


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A folder without a stack, and no endpoint in the settings."""
    for name in [name for name in os.environ if name.startswith("RETROFILL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
