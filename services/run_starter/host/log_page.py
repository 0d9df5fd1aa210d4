"""Serves the logs of the attempts that are on this host's disk, for users on other machines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs

from retrofill_core.attempt_logs.files import NEXT, Position, read

_ATTEMPT = re.compile(r"[1-9]\d{0,18}")
_TEXT = {"Content-Type": "text/plain; charset=utf-8"}
Answer = tuple[str, Mapping[str, str], bytes]


class LogPage:
    """``ATTEMPT_ID?at=PART:BYTE``: what follows there; the header ``NEXT`` says where that ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, path: str, query: str) -> Answer:
        if not _ATTEMPT.fullmatch(path):
            return _refusal("404 Not Found", "the path is the id of an attempt")
        try:
            at = Position.parse(parse_qs(query).get("at", ["0:0"])[0])
        except ValueError:
            return _refusal("400 Bad Request", "at is PART:BYTE, like 0:4096")
        try:
            found = read(self._folder, int(path), at)
        except OSError as e:
            return _refusal("500 Internal Server Error", f"the log cannot be read: {e}")
        if found is None:
            return _refusal("404 Not Found", f"there is no log of attempt {path} here")
        data, end = found
        return "200 OK", {**_TEXT, NEXT: str(end), "Content-Length": str(len(data))}, data


def _refusal(status: str, why: str) -> Answer:
    return status, _TEXT, why.encode() + b"\n"
