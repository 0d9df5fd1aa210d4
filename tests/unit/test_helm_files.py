"""The Helm chart's files that follow from the code."""

from __future__ import annotations

import tomllib

import yaml
from tests.support import helm
from tests.support.helm_cases import MAKE, ROOT


def test_what_is_made_from_the_code_is_as_the_code_makes_it() -> None:
    for path, text in MAKE["files"]().items():
        assert path.read_text() == text, f"run deploy/helm/make.py: {path.name} is not current"


def test_the_charts_version_is_the_projects() -> None:
    chart = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)
