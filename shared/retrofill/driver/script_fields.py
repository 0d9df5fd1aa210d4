"""The fields of one try of a task's script."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from typing import Callable, Mapping, Sequence

from retrofill.outputs.staging import Staging
from retrofill.protocol.launch import Launch, Piece, Script, interval_of
from retrofill.protocol.script_texts import Values, fill, fill_between, fill_path, typed
from retrofill.sdk.scripts import located
from retrofill.sdk.sql_text import GIVEN
from retrofill.sdk.tables import Table


class Fields:
    """Fills in the texts of one try of a task's script."""

    def __init__(
        self,
        launch: Launch,
        run: Piece,
        staging: Staging,
        task: str,
        tables: Sequence[Table] = (),
        lend: Callable[[Table], str] = lambda table: table.name,
        locate: Callable[[str], str] = str,
    ) -> None:
        """``tables``: those of the task. ``lend``: the table that is written instead of one of them. ``locate``: its directory."""
        self.run = run
        interval = interval_of(launch, run)
        about = {"id": run.id, "backfill_id": launch.backfill_id, "attempt": run.attempt}
        self._staged: dict[str, str] = {}
        self._staging = staging
        self._directories: list[str] = []

        def lent(number: int, name: str) -> str:
            return self._once(f"table {name}", lambda: lend(replace(tables[number], name=name)))

        self._values = Values(
            interval.start,
            interval.end,
            about,
            launch.conf,
            lambda path: self._once(path, lambda: self._directory(staging.stage(task, path))),
            staging.staged,
            lambda path, names: self._once(
                ", ".join([path, *names]), lambda: staging.stage_all_partitions(task, path, names)
            ),
            # Those of the pool are variables of its drivers. The host has checked their names.
            os.environ,
            [table.name for table in tables],
            lent,
            lambda number, name: self._once(f"location {name}", lambda: locate(lent(number, name))),
        )

    def fill(self, texts: Sequence[str]) -> list[str]:
        """The texts with their fields filled in. Raises ``BadArgument`` or ``CannotStage``."""
        return [self._with_directories(text) for text in fill(texts, self._values)]

    def fill_between(self, text: str) -> str:
        """The text, which has braces of its own, with its fields filled in. Raises like ``fill``."""
        return self._with_directories(fill_between(text, self._values))

    def located(self, script: Script, place: Callable[[str], str]) -> Script:
        """The script with the ``place`` of each of its files, whose paths are filled in. Raises ``BadArgument``."""
        return Script.of(located(asdict(script), place, lambda path: fill_path(path, self._values)))

    def parameters(self, own: Mapping[str, object]) -> dict[str, object]:
        """The values of a file of SQL's parameters, by name. Raises like ``fill``."""
        return typed({**GIVEN, **own}, self._values)

    def _directory(self, staged: str) -> str:
        self._directories.append(staged)
        return staged

    def _with_directories(self, text: str) -> str:
        """The text. A staged directory in which it names a file is made: few programs do that themselves."""
        for each in self._directories:
            if f"{each}/" in text:
                self._staging.make(each)
        return text

    def _once(self, what: str, stage: Callable[[], str]) -> str:
        """It is staged once, however often it is named."""
        if what not in self._staged:
            self._staged[what] = stage()
        return self._staged[what]
