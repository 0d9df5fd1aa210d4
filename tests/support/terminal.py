"""Runs the command line in this process as a user would."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from retrofill_tools.cli.main import run
from tests.support.installation import Installation


@dataclass(frozen=True)
class Result:
    """The result of a command."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The single JSON document on stdout."""
        return json.loads(self.out)


Cli = Callable[..., Result]


def point_at(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the command line at the installation."""
    for name, value in installation.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Returns a function that runs a command line."""

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
