"""The user's code, which a driver gets from its host."""

from __future__ import annotations

import base64
import io
import threading
import zipfile
from pathlib import Path
from typing import Any

from retrofill.driver.conversation import Conversation
from retrofill.system.files import PrivateFolder
from retrofill.user_code.attempt_code import CodeUnavailable


class Fetched:
    """The folders with the archives of code that this process has used, by hash. Thread-safe."""

    def __init__(self, host: Conversation) -> None:
        self._host = host
        self._folders: dict[str, Path] = {}
        self._lock = threading.Lock()

    def __call__(self, sha256: str) -> Path:
        """The folder with the code of this hash. Raises ``CodeUnavailable``."""
        with self._lock:
            known = self._folders.get(sha256)
            if known is None or not known.is_dir():
                self._host.say("code", sha256)
                known = self._folders[sha256] = _folder(self._host.hear("code"))
            return known


def _folder(answer: dict[str, Any]) -> Path:
    if "error" in answer:
        raise CodeUnavailable(answer["error"])
    if "folder" in answer:
        return Path(answer["folder"])
    # This machine is another one than the host's. The folder is there as long as this process lives.
    folder = PrivateFolder().path
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(answer["archive"]))) as zipped:
        zipped.extractall(folder)
    return folder
