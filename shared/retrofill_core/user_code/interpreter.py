"""Facts about a Python interpreter, as it tells them itself."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

from retrofill.errors import last_line

ASK_SECONDS = 60.0
_ASK = """
import json, site, sys, sysconfig
version = "%d.%d" % sys.version_info[:2]
platform = sys.implementation.cache_tag + "-" + sysconfig.get_platform()
print(json.dumps({"version": version, "platform": platform, "packages": site.getsitepackages()}))
"""


class NoInterpreter(Exception):
    """It cannot be executed, or is no Python. The message is one line."""


@dataclass(frozen=True)
class Interpreter:
    """``version`` like 3.12; ``platform``: also its implementation; ``packages``: the folders where it has them."""

    path: str
    version: str
    platform: str
    packages: tuple[str, ...]

    @classmethod
    def at(cls, path: str) -> Interpreter:
        """Ask the interpreter at a path, or of a name on the PATH. Raises ``NoInterpreter``."""
        try:
            done = subprocess.run(
                [path, "-I", "-c", _ASK],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ASK_SECONDS,
                check=True,
            )
            said = json.loads(done.stdout)
            return cls(path, said["version"], said["platform"], tuple(said["packages"]))
        except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as e:
            why = last_line(getattr(e, "stderr", None)) or getattr(e, "strerror", None) or f"it is no Python ({e})"
            raise NoInterpreter(f"{path} cannot be used: {why}") from e
