"""The only task of an undo: stages again what a run had replaced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

from retrofill.driver.kept import key_of
from retrofill.driver.launch import Launch, LaunchedRun
from retrofill.driver.publication import refuse_changed
from retrofill.driver.staging import Staging
from retrofill.driver.tables.output import TableOutput
from retrofill.driver.tables.publication import refuse_changed_table


def restore(launch: Launch, run: LaunchedRun, staging: Staging, session: Callable[[], Any], task: str) -> None:
    """Stage what the run that is undone had replaced.

    Raises ``NotKept``, ``PublishedAgain``, ``CannotStage`` or ``OSError``.
    """
    assert run.restores is not None
    for output in run.outputs:
        table = TableOutput.of(output)
        if table is None:
            staging.restore(task, output)
        else:
            staging.tables.restore(task, session(), table)
    # Publishers compare as well, but one output after the other: if one cannot be undone, none is.
    for output in run.outputs if len(run.outputs) > 1 else ():
        table = TableOutput.of(output)
        if table is None:
            refuse_changed(Path(output), key_of(launch.installation, run.restores))
        else:
            refuse_changed_table(replace(table, undoes=run.restores), launch, run, session())
