"""Scripts of ``submit`` tasks, as the SDK describes them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from retrofill.domain.pipeline import SubmitScript, TaskDefinition


def script_of(
    script: str,
    *,
    lists: Mapping[str, Sequence[str]],
    conf: Mapping[str, str],
    env: Mapping[str, str],
    deploy_mode: str,
) -> SubmitScript:
    """A script with the arguments of ``Pipeline.submit``. Raises ``ValueError``."""
    for name, given in lists.items():
        if isinstance(given, str):
            raise ValueError(f"{name} is {given!r}: give a list")
    more = {"conf": conf, "env": env, "deploy_mode": deploy_mode}
    return SubmitScript.model_validate({"script": script, **lists, **more})


def with_paths(task: TaskDefinition, folder: Path | None) -> TaskDefinition:
    """The task with absolute paths of its script and the files of that, looked for in ``folder`` first."""
    if task.submit is None:
        return task
    submit = task.submit.located(lambda address: _path(address, folder))
    return task.model_copy(update={"submit": submit})


def _path(given: str, folder: Path | None) -> str:
    """The absolute path: next to the pipeline's file, or else in the working directory.

    Addresses of other file systems are kept.
    """
    if "://" in given:
        return given
    beside = folder / given if folder else None
    # Normalized, because ".." would hide the real location.
    return os.path.normpath(beside if beside is not None and beside.exists() else Path(given).absolute())
