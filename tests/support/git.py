"""Asks git about the tree that is tested or measured."""

from __future__ import annotations

import subprocess

from tests.support.installation import ROOT


def git(*arguments: str) -> str:
    """What git prints, or nothing if it fails. Raises ``FileNotFoundError`` where there is no git."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
