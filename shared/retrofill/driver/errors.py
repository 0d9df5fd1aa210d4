"""Why something of the user failed, as data: type, message and the lines of the traceback that are the user's."""

from __future__ import annotations

import concurrent.futures
import re
import traceback
from pathlib import Path
from types import TracebackType

import tenacity

from retrofill.contract.runs import ErrorInfo
from retrofill.redaction import redacted

# In UTF-8, which is no less than its characters: those are what the messages' schemas limit.
MESSAGE_BYTES = 4000
TRACEBACK_BYTES = 8000
# So much of a text is searched for what must not leave.
MAX_SEARCHED = 262_144
_JVM_FRAMES = re.compile(r"\s*JVM stacktrace:\n[^\n]*(?:\n\s*at [^\n]*|\n\s*\.\.\. \d+ more|\nCaused by:[^\n]*)*")
# Frames above the user's first one say nothing to the user.
_OURS = tuple(str(Path(file).parent) for file in (__file__, tenacity.__file__, concurrent.futures.__file__))


def error_info(error: BaseException) -> ErrorInfo:
    """The error as reported. Never raises, whatever the error's own ``__str__`` does."""
    try:
        message = str(error)
    except Exception as e:  # noqa: BLE001 - an error that cannot be told must not hide that there was one
        message = f"(its text cannot be told: {type(e).__name__})"
    return ErrorInfo(
        type=clean(type(error).__qualname__)[:200],
        message=_cut(clean(_safe(message)), MESSAGE_BYTES),
        traceback=_cut(clean(_traceback(error)), TRACEBACK_BYTES).rstrip() or None,
    )


def clean(text: str) -> str:
    """Text that every database and JSON reader takes: no lone surrogates, no NUL, written out or escaped."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "␀").replace("\\u0000", "␀")


def without_jvm(text: str) -> str:
    """The text without the frames of Spark's inside that its errors carry along."""
    return _JVM_FRAMES.sub("", text)


def _traceback(error: BaseException) -> str:
    """The whole chain of errors where it fits, otherwise the last frames of the last one and what it says."""
    try:
        users = _users(error.__traceback__)
        whole = _safe("".join(traceback.format_exception(type(error), error, users)))
        if len(whole.encode("utf-8", "replace")) <= TRACEBACK_BYTES:
            return whole
        says = _safe("".join(traceback.format_exception_only(error)))
        return _tail(redacted("".join(traceback.format_tb(users))), TRACEBACK_BYTES // 2) + "\n" + says
    except Exception:  # noqa: BLE001 - the same as above
        return ""


def _safe(text: str) -> str:
    """Without what is of Spark's inside, and what must not leave the driver: before it is cut, or half of it would leave."""
    return redacted(without_jvm(text[:MAX_SEARCHED]))


def _cut(text: str, limit: int) -> str:
    """So much of the text as has this many bytes."""
    return text.encode()[:limit].decode(errors="ignore")


def _users(first: TracebackType | None) -> TracebackType | None:
    """The traceback from the user's first frame on, or all of it where there is none."""
    found = first
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_OURS):
        found = found.tb_next
    return found or first


def _tail(text: str, limit: int) -> str:
    """The last whole lines within the limit."""
    text = text.rstrip()
    if len(text) <= limit:
        return text
    cut = text[-(limit - 2) :]
    return "…\n" + (cut.split("\n", 1)[1] if "\n" in cut else cut)
