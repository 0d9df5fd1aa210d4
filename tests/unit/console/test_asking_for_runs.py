"""Commands for many runs: each of all or none of a hundred, which change while they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from retrofill.errors import UserError
from retrofill_console.answers import Refused
from retrofill_console.api import requests
from retrofill_console.api.inputs import NamedRuns
from retrofill_console.api.requests import answered, cancel_runs
from retrofill_console.login import Viewer
from retrofill_core.contract.backfills import BackfillCommandRejected, RunCancelAccepted, RunCancelRequested
from retrofill_core.domain.run import CANCELLABLE, UNFINISHED, RunState
from retrofill_core.setting_types import Role
from retrofill_tools.client.kafka import NoAnswer
from retrofill_tools.client.runs import NamedRun

START = datetime(2024, 1, 1, tzinfo=UTC)
VIEWER = Viewer("ada", Role.REQUEST)
BODY = NamedRuns(backfill_id="b", ids=(1,))


class Planner:
    """Refuses a command with one of the runs in ``refuses``; those in ``ends`` have ended once it refused.

    Those in ``left`` have succeeded since they were read.
    """

    def __init__(self, runs: Sequence[int], refuses: set[int], ends: set[int], left: set[int] | None = None) -> None:
        self.open, self.refuses, self.ends = list(runs), refuses, ends
        self.left = left or set()
        self.accepted: list[int] = []

    def present(self, *_: Any, **__: Any) -> Any:
        return [NamedRun(id, START) for id in self.open]

    def command(self, _: Any, id: str, request: RunCancelRequested) -> Any:
        if bad := self.refuses.intersection(request.run_ids):
            self.open = [each for each in self.open if each not in self.ends]
            message = f"run {min(bad)} is publishing; no run was canceled"
            raise Refused(BackfillCommandRejected(backfill_id=id, command=request.type, message=message))
        ids = [each for each in request.run_ids if each not in self.left]
        self.accepted += ids
        self.open = [each for each in self.open if each not in request.run_ids]
        left = {"succeeded": len(request.run_ids) - len(ids)} if len(ids) < len(request.run_ids) else {}
        about = {"backfill_id": id, "pipeline": "p", "intervals": (START,) * len(ids)}
        answer = RunCancelAccepted(**about, run_ids=tuple(ids), left=left)
        return {"id": id, "answer": answered(answer)}


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> Any:
    def cancel(planner: Planner) -> Any:
        monkeypatch.setattr(requests, "_present", planner.present)
        monkeypatch.setattr(requests, "command", planner.command)
        return cancel_runs(cast(Any, None), BODY, VIEWER)

    return cancel


def test_what_can_be_cancelled_is_what_has_not_ended_and_is_not_accepted() -> None:
    assert {*CANCELLABLE, RunState.STAGED, RunState.PUBLISHING} == set(UNFINISHED)


def test_one_that_ended_meanwhile_is_left_out(cancelled: Any) -> None:
    planner = Planner(range(250), refuses={120, 240}, ends={120, 240})
    assert cancelled(planner) == {"backfill_id": "b", "runs": 248, "left": {}}
    assert sorted(planner.accepted) == [id for id in range(250) if id not in (120, 240)]


@pytest.mark.parametrize("left", [{7}, {7, 120, 121}, set(range(250))])
def test_what_the_planner_leaves_is_not_counted(cancelled: Any, left: set[int]) -> None:
    planner = Planner(range(250), refuses=set(), ends=set(), left=left)
    assert cancelled(planner) == {"backfill_id": "b", "runs": 250 - len(left), "left": {"succeeded": len(left)}}
    assert set(planner.accepted) == set(range(250)) - left


def test_what_was_accepted_before_a_refusal_is_told(cancelled: Any) -> None:
    with pytest.raises(UserError, match=r"100 runs were accepted, and then: run 150 is publishing"):
        cancelled(Planner(range(250), refuses={150}, ends=set()))


def test_all_that_were_left_ended_meanwhile(cancelled: Any) -> None:
    assert cancelled(Planner(range(150), refuses={120}, ends=set(range(100, 150))))["runs"] == 100


def test_a_refusal_at_once_is_that_of_the_planner(cancelled: Any) -> None:
    for ends in (set(), {0}):
        with pytest.raises(Refused, match=r"^run 0 is publishing; no run was canceled$"):
            cancelled(Planner([0], refuses={0}, ends=ends))


def test_none_is_left(cancelled: Any) -> None:
    with pytest.raises(
        UserError, match="none of these runs of backfill b is queued or starting or running and not already"
    ):
        cancelled(Planner([], refuses=set(), ends=set()))


def test_what_was_accepted_before_no_answer_came_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    planner, asked = Planner(range(250), refuses=set(), ends=set()), []

    def command(console: Any, id: str, request: RunCancelRequested) -> Any:
        asked.append(request)
        if len(asked) == 3:
            raise NoAnswer("no answer within 30 s")
        return planner.command(console, id, request)

    monkeypatch.setattr(requests, "_present", planner.present)
    monkeypatch.setattr(requests, "command", command)
    with pytest.raises(UserError, match=r"200 runs were accepted, and then: no answer within 30 s"):
        cancel_runs(cast(Any, None), BODY, VIEWER)
