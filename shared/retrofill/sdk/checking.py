"""Checks what the SDK is given as soon as it is given, so that a traceback points to the user's line.

The checks are the services' models. A driver does not load them, which would take longer than most of what an
attempt does: a pipeline that it imports was checked when it was applied.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Mapping

# Only named: nothing of this package needs another one.
_PACKAGE = "retrofill_core"
_MODULE = f"{_PACKAGE}.user_code.checks"
_skipped = False


def skip() -> None:
    """Check nothing from now on in this process."""
    global _skipped
    _skipped = True


def checked(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a task, a target, a rule or an alert, unchanged. Raises ``ValueError``."""
    checks = None if _skipped else _checks()
    if checks is not None:
        checks.check(kind, dict(fields))
    return dict(fields)


def text_of(error: BaseException) -> str:
    """An error's text, of a check as the services explain it."""
    checks = _checks() if type(error).__name__ == "ValidationError" else None
    return str(error) if checks is None else str(checks.text_of(error))


@lru_cache(maxsize=None)
def _checks() -> ModuleType | None:
    return None if find_spec(_PACKAGE) is None else import_module(_MODULE)
