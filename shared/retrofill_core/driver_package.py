"""The package ``retrofill``, which drivers execute in the user's Python: a folder with a copy of it.

It needs the standard library of Python 3.8 and pyspark, nothing else. The folder has nothing else
either, so that no other version of a library hides one of the user's.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import retrofill

SOURCE = Path(retrofill.__file__).parent


def files() -> Iterator[Path]:
    """The modules' files, relative to ``SOURCE``."""
    yield from sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))


def package(home: Path) -> Path:
    """The folder to import ``retrofill`` from. Made once for each version of the modules. Raises ``OSError``."""
    contents = {path: (SOURCE / path).read_bytes() for path in files()}
    digest = hashlib.sha256()
    for path, content in contents.items():
        digest.update(f"{path} {len(content)}\n".encode() + content)
    target = home.absolute() / "driver-package" / digest.hexdigest()[:16]
    if not target.is_dir():
        _make(target, contents)
    return target


def _make(target: Path, contents: dict[Path, bytes]) -> None:
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        for path, content in contents.items():
            file = draft / "retrofill" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        draft.rename(target)
    except OSError:
        # Another host of the same home was faster.
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def entry(folder: Path, name: str) -> str:
    """The path of a program of the drivers in their package."""
    return os.fspath(folder / "retrofill" / "driver" / f"{name}.py")


def inspecting(home: Path) -> str:
    """The path of the program that describes pipelines, in a package. Raises ``OSError``."""
    return os.fspath(package(home) / "retrofill" / "user_code" / "inspecting.py")


def archive(folder: Path, into: Path) -> str:
    """The path of a new archive of the package, for a driver on another machine."""
    return shutil.make_archive(os.fspath(into / "retrofill-driver"), "zip", folder)
