"""The file by which probes and commands see that a process works."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write_ready(home: Path, name: str, url: str) -> Path:
    """Write the file of this process, which contains its HTTP address. Returns its path, to be removed at the end."""
    folder = home.absolute() / "run"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{os.getpid()}.ready"
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps({"http": url}))
    # Renamed: whoever finds the file finds the address in it.
    draft.rename(path)
    return path
