"""A zoo of bad manners: what user code does to its process, and how its run has to end."""

from __future__ import annotations

import atexit
import builtins
import concurrent.futures
import ctypes
import json
import logging
import multiprocessing
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any, NoReturn

from retrofill.states import PROCESS_ENDED

MEGABYTE = 1_000_000
NO_LUCK = ("ValueError", "no luck")
# What tasks leave behind. Without a reference, it would end at once.
KEPT: list[Any] = []


class Unspeakable(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Broken:
    """A stream on which nothing works."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(name)


class Raises(logging.Handler):
    """A log handler that fails."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("it does not log")


class Blocks(logging.Handler):
    """A log handler that never returns."""

    def emit(self, record: logging.LogRecord) -> None:
        threading.Event().wait()


def fails(error: BaseException | None = None) -> NoReturn:
    raise error or ValueError("no luck")


def no_luck(*_: object, **__: object) -> NoReturn:
    """Replaces functions of the standard library."""
    fails()


def stream(value: Any) -> NoReturn:
    sys.stderr = sys.stdout = value
    fails()


def closed() -> NoReturn:
    os.close(1)
    os.close(2)
    fails()


def handled(handler: logging.Handler) -> NoReturn:
    logging.getLogger().handlers = [handler]
    fails()


def forks() -> None:
    pid = os.fork()
    if pid == 0:
        fails()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def forks_and_exits() -> None:
    if os.fork() == 0:
        return
    os.wait()
    os._exit(3)


def child_work(n: int) -> int:
    return n + 1


def pools() -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(child_work, [1, 2]) == [2, 3]


def of_method(name: str) -> None:
    context: BaseContext = multiprocessing.get_context(name)
    with context.Pool(2) as pool:
        assert pool.map(str.upper, ["a", "b"]) == ["A", "B"]
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        assert list(executor.map(str.upper, ["a", "b"])) == ["A", "B"]


def programs() -> None:
    assert subprocess.run(["cat"], stdout=subprocess.PIPE, check=True).stdout == b""
    assert subprocess.check_output([sys.executable, "-c", "print(1)"]) == b"1\n"


def left(name: str, out: str) -> None:
    """Leave pools of processes behind, and write their ids down."""
    context = multiprocessing.get_context(name)
    executor = concurrent.futures.ProcessPoolExecutor(2, mp_context=context)
    KEPT.extend([context.Pool(2), executor])
    executor.submit(os.getpid).result()
    pids = [process.pid for process in multiprocessing.active_children()]
    (pathlib.Path(out) / f"left-{name}").write_text(json.dumps(pids))


def stays() -> None:
    for daemon in (True, False):
        threading.Thread(target=time.sleep, args=(3600,), daemon=daemon).start()


def signals() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM):
        # From a thread, only C can.
        ctypes.CDLL(None).signal(number, 1)


def patches(*places: tuple[Any, str]) -> NoReturn:
    for owner, name in places:
        setattr(owner, name, no_luck)
    fails()


def forgets() -> NoReturn:
    os.environ.clear()
    fails()


def prints(megabytes: int) -> None:
    # As a program does that has its own buffers.
    line = b"x" * 999 + b"\n"
    for _ in range(megabytes):
        os.write(1, line * 1000)


def recursion() -> None:
    recursion()


DO: dict[str, Callable[[], object]] = {
    "_exit 0": lambda: os._exit(0),
    "_exit 3": lambda: os._exit(3),
    "exit of C": lambda: ctypes.CDLL(None).exit(7),
    "sys.exit": lambda: sys.exit(),
    "sys.exit 0": lambda: sys.exit(0),
    "sys.exit 3": lambda: sys.exit(3),
    "sys.exit with words": lambda: sys.exit("there is no input"),
    "KeyboardInterrupt": lambda: fails(KeyboardInterrupt()),
    "GeneratorExit": lambda: fails(GeneratorExit("over")),
    "StopIteration": lambda: fails(StopIteration("over")),
    "StopAsyncIteration": lambda: fails(StopAsyncIteration("over")),
    "unspeakable": lambda: fails(Unspeakable()),
    "stderr is None": lambda: stream(None),
    "stderr is broken": lambda: stream(Broken()),
    "stderr is closed": closed,
    "a handler raises": lambda: handled(Raises()),
    "a handler blocks": lambda: handled(Blocks()),
    "many blanks": lambda: fails(ValueError("a" + " " * 150_000 + "b")),
    "many lines": lambda: fails(ValueError("\n" * 150_000 + "JVM")),
    "many names of secrets": lambda: fails(ValueError("passw" * 30_000)),
    "a megabyte": lambda: fails(ValueError("x" * MEGABYTE)),
    "a megabyte of output": lambda: print("x" * MEGABYTE),  # noqa: T201
    "forks": forks,
    "a pool of processes": pools,
    "fork": lambda: of_method("fork"),
    "spawn": lambda: of_method("spawn"),
    "forkserver": lambda: of_method("forkserver"),
    "programs": programs,
    "forks and exits": forks_and_exits,
    "threads stay": stays,
    "hangs at its exit": lambda: atexit.register(threading.Event().wait),
    "ignores signals": signals,
    "recursion": recursion,
    "a gigabyte of output": lambda: prints(1000),
    "patches print": lambda: patches((builtins, "print")),
    "patches clocks": lambda: patches((time, "time"), (time, "sleep")),
    "patches json": lambda: patches((json, "dumps"), (json, "loads")),
    "patches sockets": lambda: patches((socket, "socket"), (socket, "create_connection")),
    "empties the environment": forgets,
    "patches logging": lambda: patches((logging.Logger, "_log"), (logging.Logger, "handle")),
}
# Takes long.
LARGE = ("a gigabyte of output",)
# How a run ends: ``None`` if it succeeds, else the type of its error and what the message says.
ENDS: dict[str, tuple[str, str] | None] = {
    "sys.exit": None,
    "sys.exit 0": None,
    "sys.exit 3": ("SystemExit", "3"),
    "sys.exit with words": ("SystemExit", "there is no input"),
    "KeyboardInterrupt": ("KeyboardInterrupt", ""),
    "GeneratorExit": ("GeneratorExit", "over"),
    "StopIteration": ("StopIteration", "over"),
    "StopAsyncIteration": ("StopAsyncIteration", "over"),
    "unspeakable": ("Unspeakable", "its text is not available"),
    "stderr is None": NO_LUCK,
    "stderr is broken": NO_LUCK,
    "stderr is closed": NO_LUCK,
    "a handler raises": NO_LUCK,
    "a handler blocks": NO_LUCK,
    "many blanks": ("ValueError", "a "),
    "many lines": ("ValueError", ""),
    "many names of secrets": ("ValueError", "passw"),
    "a megabyte": ("ValueError", "xxx"),
    "a megabyte of output": None,
    "forks": None,
    "a pool of processes": None,
    "fork": None,
    "spawn": None,
    "forkserver": None,
    "programs": None,
    "threads stay": None,
    "hangs at its exit": None,
    "ignores signals": None,
    "recursion": ("RecursionError", "maximum recursion depth"),
    "patches print": NO_LUCK,
    "patches clocks": NO_LUCK,
    "patches json": NO_LUCK,
    "patches sockets": NO_LUCK,
    "empties the environment": NO_LUCK,
    "patches logging": NO_LUCK,
}
# They end the task early, as a success.
QUITS = {"sys.exit", "sys.exit 0"}
# The exit status with which the code of a task ends its process.
EXITS = {"_exit 0": 0, "_exit 3": 3, "exit of C": 7, "forks and exits": 3}
ENDS_OF_ALL = {**ENDS, **{what: (PROCESS_ENDED, f"exit status {status}") for what, status in EXITS.items()}}
