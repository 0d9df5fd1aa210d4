"""Scripts of ``submit`` tasks, as the SDK describes them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

# Fields with paths or addresses, besides the script's own.
LISTS = ("py_files", "jars", "files")


def script_of(
    script: str,
    *,
    lists: Mapping[str, Sequence[str]],
    conf: Mapping[str, str],
    env: Mapping[str, str],
    deploy_mode: str,
) -> dict[str, Any]:
    """A script with the arguments of ``Pipeline.submit``. Raises ``ValueError``."""
    for name, given in lists.items():
        if isinstance(given, str):
            raise ValueError(f"{name} is {given!r}: give a list")
    return {"script": script, **lists, "conf": dict(conf), "env": dict(env), "deploy_mode": deploy_mode}


def located(script: Mapping[str, Any], place: Callable[[str], str]) -> dict[str, Any]:
    """A script with the ``place`` of each of its addresses."""
    lists = {name: [place(each) for each in script.get(name, ())] for name in LISTS}
    return {**script, "script": place(script["script"]), **lists}


def with_paths(task: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """The task with absolute paths of its script and the files of that, looked for in ``folder`` first."""
    script = task["submit"]
    return {**task, "submit": None if script is None else located(script, lambda address: _path(address, folder))}


def _path(given: str, folder: Path | None) -> str:
    """The absolute path: next to the pipeline's file, or else in the working directory.

    Addresses of other file systems are kept.
    """
    if "://" in given:
        return given
    beside = folder / given if folder else None
    # Normalized, because ".." would hide the real location.
    return os.path.normpath(beside if beside is not None and beside.exists() else Path(given).absolute())
