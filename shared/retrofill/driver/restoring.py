"""The only task of an undo: stages again what a run had replaced."""

from __future__ import annotations

from typing import Any, Callable

from retrofill.driver.staging import Staging
from retrofill.driver.table_output import TableOutput


def restore(staging: Staging, session: Callable[[], Any], task: str, number: int, output: str) -> None:
    """Stage what the run that is undone had replaced by ``output``.

    ``number``: of the undoing run in the piece. Raises ``NotKept``, ``CannotStage`` or ``OSError``.
    """
    table = TableOutput.of(output)
    if table is None:
        staging.restore(task, output, number)
    else:
        staging.tables.restore(task, session(), table, number)
