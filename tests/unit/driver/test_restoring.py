"""Directories that an undo stages, and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from tests.support.lake import launch

from retrofill.driver.publishing import publish_all
from retrofill.driver.session import Sessions
from retrofill.outputs.kept import NotKept
from retrofill.outputs.publication import PublishedAgain
from retrofill.outputs.restoring import restore
from retrofill.outputs.staging import Staging
from retrofill.outputs.tables.publication import Tables
from retrofill.protocol.facts import error_info
from retrofill.protocol.launch import Launch, Piece

NAMES = ("a", "b")


def launched(run_id: int, out: Path, undoes: int | None = None) -> Launch:
    made = launch(range(run_id, run_id + 1), run_id, 1, 0)
    outputs = tuple(str(out / name) for name in NAMES)
    runs = (replace(made.runs[0], restores=undoes, outputs=outputs),)
    return replace(made, backfill_id=f"of run {run_id}", runs=runs, keep_replaced_days=7)


def write(run_id: int, out: Path, more: str = "") -> None:
    """Publish two directories."""
    made = launched(run_id, out)
    staging = Staging(made, Piece(made.runs))
    for name in NAMES:
        folder = Path(staging.stage("a", str(out / name)))
        folder.mkdir()
        (folder / f"part{more}").write_text(f"{name} of {run_id}")
    publish(made, staging)


def undo(run_id: int, out: Path, undoes: int) -> tuple[Launch, Staging]:
    """Stage the undo."""
    made = launched(run_id, out, undoes)
    staging = Staging(made, Piece(made.runs))
    restore(made, Piece(made.runs), staging, pytest.fail, "restore")
    return made, staging


def publish(made: Launch, staging: Staging) -> None:
    (outputs,) = staging.seal().values()
    # No output is one.
    tables = Tables(made, cast(Sessions, None), lambda _: False, pytest.fail)
    ((_, result),) = publish_all(made, made.attempt_id, [replace(made.runs[0], outputs=outputs)], tables)
    assert result.succeeded, result.error


def content(out: Path) -> dict[str, str]:
    return {str(path.relative_to(out)): path.read_text() for path in sorted(out.glob("[ab]/part*"))}


def test_all_outputs_of_a_run_come_back_as_links_to_the_kept_files(tmp_path: Path) -> None:
    write(1, tmp_path, "-1")
    (number,) = {path.stat().st_ino for path in tmp_path.glob("a/part-1")}
    write(2, tmp_path, "-2")
    publish(*undo(3, tmp_path, undoes=2))
    assert content(tmp_path) == {"a/part-1": "a of 1", "b/part-1": "b of 1"}
    assert (tmp_path / "a" / "part-1").stat().st_ino == number


def test_they_are_copied_where_files_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.link", refuse)
    write(1, tmp_path)
    write(2, tmp_path)
    publish(*undo(3, tmp_path, undoes=2))
    assert content(tmp_path) == {"a/part": "a of 1", "b/part": "b of 1"}


def test_none_of_several_outputs_is_restored_if_one_was_changed(tmp_path: Path) -> None:
    write(1, tmp_path)
    write(2, tmp_path)
    (tmp_path / "b" / "_retrofill.json").unlink()
    with pytest.raises(PublishedAgain, match=f"{tmp_path}/b was changed after run 2 had published it") as refused:
        undo(3, tmp_path, undoes=2)
    assert content(tmp_path) == {"a/part": "a of 2", "b/part": "b of 2"}
    assert error_info(refused.value).traceback is not None, "the test's own frame is the user's"


def test_a_refusal_outside_of_the_users_code_has_no_traceback(tmp_path: Path) -> None:
    made = launched(3, tmp_path, undoes=2)
    staging = Staging(made, Piece(made.runs))
    caught: list[Exception] = []
    try:
        restore(made, Piece(made.runs), staging, pytest.fail, "restore")
    except NotKept as e:
        e.__traceback__ = e.__traceback__ and e.__traceback__.tb_next
        caught.append(e)
    (error,) = caught
    assert f"what run 2 replaced at {tmp_path}/a is no longer kept" in str(error)
    assert error_info(error).traceback is None
