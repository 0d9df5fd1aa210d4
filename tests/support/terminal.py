"""The command line as a user runs it, in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from retrofill.cli.main import run


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)


Cli = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run a command line."""

    def call(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["retrofill", *arguments])
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("NO_COLOR", "1")
        capfd.readouterr()
        try:
            run()
            status = 0
        except SystemExit as e:
            status = e.code if isinstance(e.code, int) else 0
        captured = capfd.readouterr()
        return Result(status, captured.out, captured.err)

    return call
