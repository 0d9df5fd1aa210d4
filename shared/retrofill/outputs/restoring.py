"""The only task of an undo: stages again what runs had replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Sequence

from retrofill.outputs.cannot_stage import CannotStage
from retrofill.outputs.kept import key_of
from retrofill.outputs.publication import refuse_changed
from retrofill.outputs.staging import Staging
from retrofill.protocol.launch import Launch, Piece
from retrofill.protocol.table_output import TableOutput


def restore(launch: Launch, piece: Piece, staging: Staging, session: Callable[[], Any], task: str) -> None:
    """Stage what the runs that are undone had replaced.

    Raises ``NotKept``, ``PublishedAgain``, ``CannotStage`` or ``OSError``.
    """
    tables = _tables(piece)
    for table in tables:
        staging.tables.restore(task, session(), table)
    for number, run in enumerate(piece.runs):
        for path in _folders(run.outputs):
            staging.restore(task, path, number)
    # Publishers compare as well, but one output after the other: if one cannot be undone, none is.
    several = [run for run in piece.runs if len(run.outputs) > 1]
    for table in tables if several else ():
        staging.tables.refuse_changed(session(), table)
    for run in several:
        assert run.restores is not None
        for path in _folders(run.outputs):
            refuse_changed(Path(path), key_of(launch.installation, run.restores))


def _folders(outputs: Sequence[str]) -> list[str]:
    return [each for each in outputs if TableOutput.of(each) is None]


def _tables(piece: Piece) -> list[TableOutput]:
    """The tables that all runs of a piece have published, each once."""
    found: dict[str, TableOutput] = {}
    names = []
    for run in piece.runs:
        own = {each.table: each for each in map(TableOutput.of, run.outputs) if each is not None}
        found.update(own)
        names.append(own.keys())
    if any(each != names[0] for each in names):
        raise CannotStage("the runs have published different tables: they are undone in smaller ranges")
    return [*found.values()]
