"""Facts that a driver reports besides states: errors, costs and applications. Its host checks them by the contract."""

from __future__ import annotations

import concurrent.futures
import os
import re
import traceback
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Iterator

import retrofill
from retrofill.errors import head_of
from retrofill.masking import masked


@dataclass(frozen=True)
class ErrorInfo:
    """Why a task or run failed: the name of the exception's class, its message and the last lines of its traceback.

    ``same_as_run``: the run that has all of it.
    """

    type: str
    message: str
    traceback: str | None = None
    same_as_run: int | None = None

    def of_run(self, id: int, first: int) -> ErrorInfo:
        """As a run has it. If it is long, only the ``first`` of those that have it has all of it."""
        head = None if id == first else head_of(self.message, self.traceback)
        return self if head is None else replace(self, message=head, traceback=None, same_as_run=first)


@dataclass(frozen=True)
class SparkApplication:
    """The Spark application that an attempt uses, and the address of its web UI."""

    id: str
    ui: str | None = None


@dataclass(frozen=True)
class Published:
    """A folder or table that a run has replaced. ``version``: the table's since then, if it is known.

    ``replaced_change``: whether that was changed after the state that a review had approved.
    """

    name: str
    version: str | None = None
    replaced_change: bool = False


@dataclass(frozen=True)
class Cost:
    """The resources that Spark reported: seconds of executor cores, bytes and rows."""

    core_seconds: float | None = None
    shuffle_bytes: int | None = None
    rows_read: int | None = None
    rows_written: int | None = None

    def shared_by(self, runs: int) -> Cost:
        """The part of each of so many runs that were processed in one go."""

        def part(whole: int | None) -> int | None:
            return None if whole is None else whole // runs

        return Cost(
            core_seconds=None if self.core_seconds is None else self.core_seconds / runs,
            shuffle_bytes=part(self.shuffle_bytes),
            rows_read=part(self.rows_read),
            rows_written=part(self.rows_written),
        )


def as_json(fact: Any) -> dict[str, Any]:
    """The fields of a fact that are known, and not as usual."""
    return {name: value for name, value in asdict(fact).items() if value is not None and value is not False}


# Bytes of UTF-8. The message schemas limit characters, of which there are never more.
MESSAGE_BYTES = 4000
TRACEBACK_BYTES = 8000
# How much of a text is searched for secrets; the rest is dropped.
MAX_SEARCHED = 262_144
# Blanks before it are looked at once, from their first one on: a text of many would take time by their square.
_JVM_FRAMES = re.compile(
    r"(?:(?<!\s)\s+)?JVM stacktrace:\n[^\n]*(?:\n\s*at [^\n]*|\n\s*\.\.\. \d+ more|\nCaused by:[^\n]*)*"
)


def _locations(*packages: str) -> Iterator[str]:
    """The files of packages, of those that are installed."""
    for name in packages:
        found = find_spec(name)
        if found is not None and found.origin is not None:
            yield found.origin


# The modules whose refusals say all.
_OURS = ("retrofill.driver.", "retrofill.outputs.")
# Their frames say nothing about the user's code. The log of the attempt has them all.
_NOT_THE_USERS = tuple(
    str(Path(file).parent) + os.sep
    for file in (str(retrofill.__file__), concurrent.futures.__file__, *_locations("pyspark", "py4j"))
)


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


def whole_traceback(error: BaseException) -> str:
    """All frames of the whole chain of errors. Never raises."""
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception as e:  # noqa: BLE001 - the error's own ``__str__`` raises
        return f"{type(error).__name__} (its text is not available: {type(e).__name__})\n"


def _traceback(error: BaseException) -> str:
    """The whole chain of errors, with the user's frames, if it fits; else the last error's last frames."""
    try:
        chain = traceback.TracebackException.from_exception(error)
        if _explains_itself(error, chain):
            return ""
        _cut_to_users(chain)
        whole = _safe("".join(chain.format()))
        if len(whole.encode("utf-8", "replace")) <= TRACEBACK_BYTES:
            return whole
        message = _safe("".join(traceback.format_exception_only(type(error), error)))
        return _tail(masked("".join(chain.stack.format())), TRACEBACK_BYTES // 2) + "\n" + message
    except Exception:  # noqa: BLE001 - the same as above
        return ""


def _explains_itself(error: BaseException, chain: traceback.TracebackException) -> bool:
    """Whether it and its causes are of ours, outside of the user's code: its message says all."""
    said = str(error)
    cause, traced = error.__cause__ or error.__context__, chain.__cause__ or chain.__context__
    if cause is not None and not (traced is not None and str(cause) in said and _explains_itself(cause, traced)):
        return False
    ours = type(error).__module__.startswith(_OURS)
    return ours and all(frame.filename.startswith(_NOT_THE_USERS) for frame in chain.stack)


def _cut_to_users(chain: traceback.TracebackException) -> None:
    """Keep the user's frames in each error of a chain. One that has none keeps all of its own."""
    users = [frame for frame in chain.stack if not frame.filename.startswith(_NOT_THE_USERS)]
    if users:
        chain.stack = traceback.StackSummary.from_list(users)
    # Groups of errors are known from Python 3.11 on.
    for other in (chain.__cause__, chain.__context__, *(getattr(chain, "exceptions", None) or ())):
        if other is not None:
            _cut_to_users(other)


def _safe(text: str) -> str:
    """The text without JVM frames and secrets.

    Call it before cutting: half of a secret would not be recognized.
    """
    return masked(without_jvm(text[:MAX_SEARCHED]))


def _cut(text: str, limit: int) -> str:
    """The start of the text, at most ``limit`` bytes of UTF-8."""
    return text.encode()[:limit].decode(errors="ignore")


def _tail(text: str, limit: int) -> str:
    """The last complete lines within the limit."""
    text = text.rstrip()
    if len(text) <= limit:
        return text
    cut = text[-(limit - 2) :]
    return "…\n" + (cut.split("\n", 1)[1] if "\n" in cut else cut)
