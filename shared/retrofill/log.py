"""The log of services and drivers: JSON lines on standard error, with passwords and tokens masked."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime, timezone
from json import dumps
from types import MappingProxyType
from typing import Any, Iterator, Mapping

from retrofill.masking import masked_in

_bound: ContextVar[Mapping[str, Any]] = ContextVar("retrofill_bound", default=MappingProxyType({}))
# The logger of ``run.log``.
TASKS = "retrofill.task"
# Attribute of a record that has the fields of its line.
FIELDS = "retrofill_fields"


class Log:
    """A logger whose calls take fields: ``log.info("read", rows=3)``, or ``log.info("read %s", 3)``."""

    def __init__(self, logger: logging.Logger, fields: Mapping[str, Any]) -> None:
        self._logger = logger
        self._fields = fields

    def bind(self, **fields: Any) -> Log:
        """A log that adds these fields to each line."""
        return Log(self._logger, {**self._fields, **fields})

    def debug(self, event: str, *args: Any, **fields: Any) -> None:
        self.log(logging.DEBUG, event, *args, **fields)

    def info(self, event: str, *args: Any, **fields: Any) -> None:
        self.log(logging.INFO, event, *args, **fields)

    def warning(self, event: str, *args: Any, **fields: Any) -> None:
        self.log(logging.WARNING, event, *args, **fields)

    def error(self, event: str, *args: Any, **fields: Any) -> None:
        self.log(logging.ERROR, event, *args, **fields)

    def exception(self, event: str, *args: Any, **fields: Any) -> None:
        self.log(logging.ERROR, event, *args, **{"exc_info": True, **fields})

    def log(self, level: int, event: str, *args: Any, exc_info: Any = None, **fields: Any) -> None:
        """``exc_info``: as of the standard library's loggers."""
        if self._logger.isEnabledFor(level):
            extra = {FIELDS: {**_bound.get(), **self._fields, **fields}}
            self._logger.log(level, event, *args, exc_info=exc_info, extra=extra)


def get_log(name: str) -> Log:
    return Log(logging.getLogger(name), {})


@contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """Add fields to all lines of this thread in the block."""
    token = _bound.set({**_bound.get(), **fields})
    try:
        yield
    finally:
        _bound.reset(token)


class JsonLines(logging.Formatter):
    """One JSON object per record, also of libraries' records."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            **getattr(record, FIELDS, {}),
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "timestamp": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return dumps({name: masked_in(value) for name, value in line.items()}, default=repr)


def write_error(text: str) -> None:
    """Write to the process's standard error, whatever user code made of ``sys.stderr``. Never raises."""
    with suppress(OSError):  # nobody reads it
        os.write(2, text.encode("utf-8", "backslashreplace"))


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # a field cannot be shown, and there is nowhere to say so
            write_error(self.format(record) + "\n")


def configure(level: str) -> None:
    """Log all records of this level and above as JSON."""
    handler = _Lines()
    handler.setFormatter(JsonLines())
    root, own, tasks = (logging.getLogger(name) for name in (None, "retrofill", TASKS))
    root.handlers = own.handlers = [handler]
    root.setLevel(level)
    # Handlers of user code may raise or block: they get its own records, and not those of a driver that wants to end.
    own.propagate = False
    tasks.parent = root
