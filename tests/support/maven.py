"""Jars from Maven Central that only tests need, fetched as the embedded stack fetches its own."""

from __future__ import annotations

import os
from pathlib import Path

from retrofill.spark import java as runtime
from retrofill_core.settings import Settings
from retrofill_tools.stack.maven import Artifact, Maven


def maven(settings: Settings, java: Path) -> Maven:
    """It downloads silently, with this process's environment."""
    return Maven(settings, java, lambda _: None, os.environ)


def jar(artifact: Artifact) -> Path:
    """The path of an artifact's jar. Raises ``FetchFailed``."""
    return _folder(artifact) / artifact.jar


def jars(artifact: Artifact) -> list[Path]:
    """The paths of an artifact's jar and of all that it depends on. Raises ``FetchFailed``."""
    return sorted(_folder(artifact).glob("*.jar"))


def _folder(artifact: Artifact) -> Path:
    settings = Settings()
    return maven(settings, runtime.find(settings)).fetch(artifact.module, artifact)
