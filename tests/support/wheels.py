"""Tiny packages as wheels, and an index of them: a folder that pip is configured to use, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def make_wheel(folder: Path, name: str, version: str, code: str, needs: str | None = None) -> Path:
    """A pure-Python package with one module of its name."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": metadata + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = (
        "".join(f"{path},{_digest(text)}\n" for path, text in files.items()) + f"{info}/RECORD,,\n"
    )
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as zipped:
        for path, text in files.items():
            zipped.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), text)
    return made


def configured(index: Path, cache: Path) -> dict[str, str]:
    """The user's configuration of pip: only this folder. ``cache``: of pex."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PEX_ROOT": str(cache)}


def _digest(text: str) -> str:
    content = text.encode()
    found = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={found},{len(content)}"
