"""The fields in the arguments and variables of a script, like ``{interval.start:%Y-%m-%d}`` and ``{stage:/data/x}``."""

from __future__ import annotations

import string
from typing import Any, Callable, Mapping, Sequence

from retrofill.outputs.staging import Staging
from retrofill.protocol.interval import interval_of
from retrofill.protocol.launch import Launch, Piece

KNOWN = (
    "use interval.start, interval.end, run.id, run.attempt, run.backfill_id, run.logical_date, a key of conf, "
    "like conf[key], stage:PATH or staged:PATH"
)


class BadArgument(ValueError):
    """An argument refers to an unknown field."""


class Fields:
    """The fields of one try of a task's script. A path is staged once, however often it is named."""

    def __init__(self, launch: Launch, run: Piece, staging: Staging, task: str) -> None:
        self.run = run
        interval = interval_of(launch, run)
        self._values: dict[str, Any] = {
            "interval": {"start": interval.start, "end": interval.end},
            "run": {
                "id": run.id,
                "backfill_id": launch.backfill_id,
                "attempt": run.attempt,
                "logical_date": interval.start,
            },
            "conf": launch.conf,
            "stage": _PathOf(lambda path: staging.stage(task, path)),
            "staged": _PathOf(staging.staged),
        }

    def fill(self, texts: Sequence[str]) -> list[str]:
        """The texts with their fields filled in. Raises ``BadArgument`` or ``CannotStage``."""
        return [_DataFormatter().vformat(text, (), self._values) for text in texts]


class _PathOf:
    """What ``{stage:PATH}`` becomes; the path may contain fields itself."""

    def __init__(self, find: Callable[[str], str]) -> None:
        self._find = find
        self._found: dict[str, str] = {}

    def __format__(self, path: str) -> str:
        if path not in self._found:
            self._found[path] = self._find(path)
        return self._found[path]


class _DataFormatter(string.Formatter):
    """``str.format`` for plain data: dots and brackets look up keys, never attributes."""

    def get_field(
        self,
        field_name: str,
        args: Sequence[Any],  # noqa: ARG002 - the standard library's signature
        kwargs: Mapping[str, Any],
    ) -> tuple[Any, str]:
        """Look up ``a.b[c]``. Raises ``BadArgument``."""
        value: Any = kwargs
        for key in field_name.replace("[", ".").replace("]", "").split("."):
            if not isinstance(value, Mapping) or key not in value:
                raise BadArgument(f"unknown field {field_name!r}: {KNOWN}")
            value = value[key]
        return value, field_name
