"""Errors of user code as data: type, message and the user's part of the traceback."""

from __future__ import annotations

import concurrent.futures
import re
import traceback
from pathlib import Path
from types import TracebackType

import tenacity

from retrofill.contract.runs import ErrorInfo
from retrofill.redaction import redacted

# Bytes of UTF-8. The message schemas limit characters, of which there are never more.
MESSAGE_BYTES = 4000
TRACEBACK_BYTES = 8000
# How much of a text is searched for secrets; the rest is dropped.
MAX_SEARCHED = 262_144
_JVM_FRAMES = re.compile(r"\s*JVM stacktrace:\n[^\n]*(?:\n\s*at [^\n]*|\n\s*\.\.\. \d+ more|\nCaused by:[^\n]*)*")
# Frames of these packages before the user's first frame are omitted.
_OURS = tuple(str(Path(file).parent) for file in (__file__, tenacity.__file__, concurrent.futures.__file__))


def error_info(error: BaseException) -> ErrorInfo:
    """The error for a report. Never raises, even if the error's ``__str__`` does."""
    try:
        message = str(error)
    except Exception as e:  # noqa: BLE001 - the error must be reported even if its text cannot be
        message = f"(its text is not available: {type(e).__name__})"
    return ErrorInfo(
        type=clean(type(error).__qualname__)[:200],
        message=_cut(clean(_safe(message)), MESSAGE_BYTES),
        traceback=_cut(clean(_traceback(error)), TRACEBACK_BYTES).rstrip() or None,
    )


def clean(text: str) -> str:
    """Text without the lone surrogates and NULs that databases and JSON readers reject."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "␀").replace("\\u0000", "␀")


def without_jvm(text: str) -> str:
    """The text without the JVM stack traces in Spark's errors."""
    return _JVM_FRAMES.sub("", text)


def _traceback(error: BaseException) -> str:
    """The whole chain of errors if it fits, else the last error with its last frames."""
    try:
        users = _users(error.__traceback__)
        whole = _safe("".join(traceback.format_exception(type(error), error, users)))
        if len(whole.encode("utf-8", "replace")) <= TRACEBACK_BYTES:
            return whole
        message = _safe("".join(traceback.format_exception_only(error)))
        return _tail(redacted("".join(traceback.format_tb(users))), TRACEBACK_BYTES // 2) + "\n" + message
    except Exception:  # noqa: BLE001 - the same as above
        return ""


def _safe(text: str) -> str:
    """The text without JVM frames and secrets.

    Call it before cutting: half of a secret would not be recognized.
    """
    return redacted(without_jvm(text[:MAX_SEARCHED]))


def _cut(text: str, limit: int) -> str:
    """The start of the text, at most ``limit`` bytes of UTF-8."""
    return text.encode()[:limit].decode(errors="ignore")


def _users(first: TracebackType | None) -> TracebackType | None:
    """The traceback from the user's first frame on, or all of it if there is none."""
    found = first
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_OURS):
        found = found.tb_next
    return found or first


def _tail(text: str, limit: int) -> str:
    """The last complete lines within the limit."""
    text = text.rstrip()
    if len(text) <= limit:
        return text
    cut = text[-(limit - 2) :]
    return "…\n" + (cut.split("\n", 1)[1] if "\n" in cut else cut)
