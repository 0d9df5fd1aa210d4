"""The real helm, from ``RETROFILL_HELM`` or the PATH, or a fixed version built once with Go."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.built import built

VERSION = "v4.3.1"
MODULE = f"helm.sh/helm/v4/cmd/helm@{VERSION}"
CHART = Path(__file__).parents[2] / "deploy" / "helm" / "retrofill"
BUILD_SECONDS = 1100
# Read at import, because the test session removes all RETROFILL variables from the environment.
NAMED = os.environ.get("RETROFILL_HELM")
RELEASE, NAMESPACE = "r", "backfills"


@cache
def helm() -> str:
    """The path of helm. Skips the test if helm is missing and cannot be built."""
    found = NAMED or shutil.which("helm")
    if found is not None:
        return found
    return str(built(f"helm-{VERSION}", _build) / "helm")


def _build(folder: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("no helm: put one on the PATH, name it in RETROFILL_HELM, or install Go to build one")
    draft = folder.with_name(f"{folder.name}.part")
    try:
        done = subprocess.run(
            [go, "install", MODULE],
            env={**os.environ, "GOBIN": str(draft)},
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"no helm, and {MODULE} could not be built within {BUILD_SECONDS} s")
    if done.returncode != 0:
        pytest.skip(f"no helm, and {MODULE} could not be built: {done.stderr.strip().splitlines()[-1]}")
    draft.rename(folder)


def run(command: str, values: dict[str, Any], *more: str) -> subprocess.CompletedProcess[str]:
    """Run ``helm COMMAND`` on the chart with these values."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(values, file)
        file.flush()
        name = [] if command == "lint" else [RELEASE]
        return subprocess.run(
            [helm(), command, *name, str(CHART), "--namespace", NAMESPACE, "--values", file.name, *more],
            capture_output=True,
            text=True,
            check=False,
        )


def render(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The rendered manifests."""
    done = run("template", values)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def refusal(values: dict[str, Any]) -> str:
    """helm's error for values that the chart refuses, without helm's boilerplate."""
    done = run("template", values)
    assert done.returncode != 0, "the chart takes these values"
    assert "goroutine" not in done.stderr
    frame = ("Error: values don't meet", "retrofill:", "Use --debug flag")
    lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith(frame)]
    (line,) = lines
    return line
