"""Exchanges two directories atomically, where the system can: Linux, on most local file systems."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

# From linux/fs.h and fcntl.h.
RENAME_EXCHANGE = 2
AT_FDCWD = -100
# Of a kernel, file system or sandbox without the call.
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)


def _system_call() -> Any:
    try:
        import ctypes

        return ctypes.CDLL(None, use_errno=True).renameat2
    except (ImportError, OSError, AttributeError):
        return None


_renameat2 = _system_call()


def exchange(one: Path, other: Path) -> bool | None:
    """Exchange the two. Returns False if one does not exist, ``None`` if that is not possible here.

    Raises ``OSError``.
    """
    if _renameat2 is None:
        return None
    import ctypes

    if _renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code == errno.ENOENT:
        return False
    if code in _UNSUPPORTED:
        return None
    raise OSError(code, os.strerror(code), str(other))
