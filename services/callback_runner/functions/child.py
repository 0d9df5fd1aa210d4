"""The process of one call: ``python -m callback_runner.functions.child module:function``.

It reads the arguments as one line of JSON from stdin. It imports the user's code, and therefore
nothing of the service. Exit status 0 means that the function returned; the end of stdout and stderr
becomes the error message. Each further line on stdin renews the claim: until when, by this machine's
monotonic clock, which processes share. At that time, or if stdin closes, this process kills itself, so
it does not run beside a repeated call.
"""

from __future__ import annotations

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
from typing import Any, NoReturn


def main(target: str) -> int:
    """Call ``target`` with the arguments from stdin. Returns the exit status."""
    with os.fdopen(os.dup(0), "rb", buffering=0) as lifeline:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        call, alive_until = _read_call(lifeline.fileno())
        if time.monotonic() >= alive_until:
            _end()  # before anything of the user's: it was suspended on its way here
        threading.Thread(target=_end_with_claim, args=(lifeline.fileno(), alive_until), daemon=True).start()
        try:
            invoke(resolve(target), call["kwargs"], call["context"])
        except Exception:  # noqa: BLE001 - any error of the user's code is this call's outcome
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
        raise ValueError(f"{target} is not a function but of type {type(found).__name__}")
    function: Callable[..., object] = found
    return function


def invoke(function: Callable[..., object], kwargs: dict[str, Any], context: dict[str, Any]) -> None:
    """Call ``function``, with ``context`` if it has that parameter, and await its result."""
    if "context" not in kwargs and _takes_context(function):
        kwargs = {**kwargs, "context": context}
    result = function(**kwargs)
    if inspect.isawaitable(result):
        import asyncio  # on demand: importing it takes longer than all the rest of this process

        asyncio.run(_wait_for(result))


def _takes_context(function: Callable[..., object]) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    named = parameters.get("context")
    return named is not None and named.kind in (named.POSITIONAL_OR_KEYWORD, named.KEYWORD_ONLY)


async def _wait_for(result: Awaitable[object]) -> None:
    await result


def _read_call(fd: int) -> tuple[dict[str, Any], float]:
    """The first line, and until when the claim is ours, as it or what was read with it says."""
    text = b""
    while b"\n" not in text:
        part = os.read(fd, 65536)
        if not part:
            _end()
        text += part
    first, _, renewals = text.partition(b"\n")
    call: dict[str, Any] = json.loads(first)
    return call, _last(renewals) or call["alive_until"]


def _last(renewals: bytes) -> float | None:
    """The end of the last renewal. Each was written at once, so all are whole."""
    found = renewals.split()
    return float(found[-1]) if found else None


def _end_with_claim(fd: int, alive_until: float) -> None:
    """Kill this process and its children once the claim is no longer renewed."""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while (left := alive_until - time.monotonic()) > 0:
            if selector.select(left):
                renewals = os.read(fd, 4096)
                if not renewals:
                    break
                alive_until = _last(renewals) or alive_until
    _end()


def _end() -> NoReturn:
    os.killpg(os.getpgid(0), signal.SIGKILL)
    raise SystemExit(1)  # never reached


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
