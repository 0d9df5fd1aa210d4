"""``python inspecting.py FILE_OR_MODULE``: describes its pipelines, in the Python that has the packages it imports.

Prints one JSON object: what ``described`` returns; or ``error``: one line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0:1] = [str(Path(__file__).absolute().parents[2])]

from retrofill.user_code.loading import PipelineFileError, is_users, pipelines_in, root_of


def described(source: str) -> dict[str, Any]:
    """``place``: ``file`` or ``module``; ``root``: the directory that it is imported from, unless that is an installed
    package; ``pipelines`` by attribute, unchecked; ``files``: of all modules that are the user's.

    Raises ``PipelineFileError``.
    """
    place, found = pipelines_in(source)
    root = root_of(**place)
    try:
        data = {attribute: pipeline.to_data(place.get("file")) for attribute, pipeline in found.items()}
    except ValueError as e:
        raise PipelineFileError(f"{source}: {e}") from e
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return {
        "place": place,
        "root": None if root is None else str(root),
        "pipelines": data,
        "files": [each for each in files if isinstance(each, str) and is_users(each)],
    }


def main(source: str) -> None:
    """Describe the pipelines. What the user's code prints goes to standard error."""
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        said = described(source)
    except PipelineFileError as e:
        said = {"error": str(e)}
    with os.fdopen(answer, "w", encoding="utf-8") as out:
        json.dump(said, out)


if __name__ == "__main__":
    main(sys.argv[1])
