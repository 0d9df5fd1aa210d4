"""Paths by their text alone: no file system is asked."""

from __future__ import annotations


def is_inside(path: str, root: str) -> bool:
    """Whether ``path`` is inside the folder ``root``, by its text alone, without any ``..``."""
    return path.startswith(f"{root.rstrip('/')}/") and ".." not in path.split("/")
