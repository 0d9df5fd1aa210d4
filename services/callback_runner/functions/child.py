"""The process of one call: ``python -m callback_runner.functions.child module:function``, with one line of JSON on stdin.

It imports the user's code, so it imports nothing of the service's. Exit status 0 says that the function returned; what
it writes to stdout or stderr is kept for the error. Each further line on stdin says that the claim is still alive;
when none comes for its lease, or stdin ends, the runner is dead or stopped and this process ends itself, so that a
call that is made again elsewhere does not run beside this one.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import selectors
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

# The claim's lease began a little before this process knew of it.
LEASE_SHARE = 0.8


def main(target: str) -> int:
    """Call ``target`` as stdin says; returns the exit status."""
    with os.fdopen(os.dup(0), "rb", buffering=0) as lifeline:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        call = json.loads(_read_line(lifeline.fileno()))
        threading.Thread(
            target=_end_with_claim, args=(lifeline.fileno(), call["lease_seconds"] * LEASE_SHARE), daemon=True
        ).start()
        try:
            invoke(resolve(target), call["kwargs"], call["context"])
        except Exception:  # noqa: BLE001 - whatever the user's code raises is the result of this call
            traceback.print_exc()
            return 1
        return 0


def resolve(target: str) -> Callable[..., object]:
    """The function of ``module:function``. Raises ``ValueError`` or what importing raises."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise ValueError(f"{target!r} is not of the form module:function")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{target} is no function but of type {type(found).__name__}")
    function: Callable[..., object] = found
    return function


def invoke(function: Callable[..., object], kwargs: dict[str, Any], context: dict[str, Any]) -> None:
    """Call ``function``, with the context where it has a parameter of that name, and await what it returns."""
    if "context" not in kwargs and _takes_context(function):
        kwargs = {**kwargs, "context": context}
    result = function(**kwargs)
    if inspect.isawaitable(result):
        asyncio.run(_wait_for(result))


def _takes_context(function: Callable[..., object]) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some that are written in C have no signature
        return False
    named = parameters.get("context")
    return named is not None and named.kind in (named.POSITIONAL_OR_KEYWORD, named.KEYWORD_ONLY)


async def _wait_for(result: Awaitable[object]) -> None:
    await result


def _read_line(fd: int) -> bytes:
    """The first line; byte counts do not matter to the lines after it, which say nothing but that they came."""
    parts: list[bytes] = []
    while True:
        part = os.read(fd, 65536)
        parts.append(part)
        if not part or b"\n" in part:
            return b"".join(parts).split(b"\n", 1)[0]


def _end_with_claim(fd: int, seconds: float) -> None:
    """End this process and all it started once nobody says any more that the claim is alive."""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if selector.select(left):
                if not os.read(fd, 4096):
                    break
                until = time.monotonic() + seconds
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
