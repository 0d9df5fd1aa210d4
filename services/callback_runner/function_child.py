"""The process of one call: ``python -m callback_runner.function_child module:function``.

It reads the arguments as one line of JSON from stdin. It imports the user's code, and therefore
nothing of the service. Exit status 0 means that the function returned; the end of stdout and stderr
becomes the error message. Each further line on stdin says until when the claim is held, by this machine's
monotonic clock, which processes share. At that time, or if stdin closes, this process kills itself, so
it does not run beside a repeated call.

User code in C may hold the interpreter's lock, and the process may be stopped, for longer than a lease: renewals then wait in
the pipe, and are read before anything is decided. The runner ends a call that is silent for longer than its time limit.
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
        claim = Lifeline(lifeline.fileno())
        call: dict[str, Any] = json.loads(claim.next_line())
        claim.renewed(claim.next_line())
        if not claim.held():
            _end()  # before anything of the user's: it was suspended on its way here
        threading.Thread(target=_end_with, args=(claim,), daemon=True).start()
        # Only now: a file of the user's may be named like a module of Python that was needed above.
        sys.path.insert(0, "")
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


class Lifeline:
    """What the runner writes on ``fd``: lines, of which all but the first renew the claim."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._text = b""
        self._alive_until = 0.0

    def next_line(self) -> bytes:
        """Wait for the next line. Ends this process if there is none."""
        while b"\n" not in self._text:
            self._read()
        line, _, self._text = self._text.partition(b"\n")
        return line

    def renewed(self, line: bytes) -> None:
        self._alive_until = float(line)

    def held(self) -> bool:
        """Whether the claim is held, as everything says that was written until now. Ends this process if stdin closed."""
        while self.wait(0.0):
            self._read()
        while b"\n" in self._text:
            self.renewed(self.next_line())
        return self.left() > 0

    def left(self) -> float:
        """Seconds until the claim ends, as far as was read."""
        return self._alive_until - time.monotonic()

    def wait(self, seconds: float) -> bool:
        """Whether there is something to read within ``seconds``."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._fd, selectors.EVENT_READ)
            return bool(selector.select(seconds))

    def _read(self) -> None:
        part = os.read(self._fd, 65536)
        if not part:
            _end()
        self._text += part


def _end_with(claim: Lifeline) -> None:
    """Kill this process and its children once the claim is no longer renewed."""
    while claim.held():
        claim.wait(claim.left())
    _end()


def _end() -> NoReturn:
    os.killpg(os.getpgid(0), signal.SIGKILL)
    raise SystemExit(1)  # never reached


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
