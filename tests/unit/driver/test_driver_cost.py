"""Spark's use of resources for an attempt, from a server that answers like the REST API of Spark's UI."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from retrofill.driver import application
from retrofill.driver.application import cost_of
from retrofill.protocol.facts import Cost

TAG = "retrofill-attempt-7"
APPLICATIONS = "/api/v1/applications"
OF_CONNECT = f"SparkConnect_Execute_User_retrofill_Session_1f_Tag_{TAG}"


def job(*stages: int, tag: str) -> dict[str, Any]:
    return {"jobId": stages[0], "status": "SUCCEEDED", "stageIds": list(stages), "jobTags": ["other", tag]}


def stage(id: int, seconds: int, attempt: int = 0) -> dict[str, Any]:
    numbers = {"executorRunTime": seconds * 1000, "shuffleWriteBytes": 10, "inputRecords": 100, "outputRecords": 1}
    return {"stageId": id, "attemptId": attempt, **numbers}


class Ui:
    """Answers by path, some of them once at ``first``; if it ``hangs``, never."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            APPLICATIONS: [{"id": "app-1"}],
            f"{APPLICATIONS}/app-1/jobs": [
                job(1, 2, tag=OF_CONNECT),
                job(3, tag=f"{OF_CONNECT}0"),
                job(4, tag=TAG),
            ],
            f"{APPLICATIONS}/app-1/stages": [stage(1, 3), stage(2, 4), stage(2, 5, 1), stage(3, 100), stage(4, 6)],
        }
        self.first: dict[str, Any] = {}
        self.asked: list[str] = []
        self.hangs = False
        self.over = threading.Event()
        ui = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                ui.asked.append(self.path)
                if ui.hangs:
                    ui.over.wait()
                found = ui.first.pop(self.path, ui.answers.get(self.path))
                self.send_response(404 if found is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def ui() -> Iterator[Ui]:
    made = Ui()
    yield made
    made.over.set()
    made.server.shutdown()
    made.server.server_close()


def test_only_jobs_of_the_attempt_count_with_their_retried_stages(ui: Ui) -> None:
    assert cost_of(ui.address, TAG) == Cost(core_seconds=18.0, shuffle_bytes=40, rows_read=400, rows_written=4)


def test_a_job_of_which_the_ui_does_not_know_that_it_ended_is_waited_for(ui: Ui) -> None:
    jobs = f"{APPLICATIONS}/app-1/jobs"
    running = [{**each, "status": "RUNNING"} for each in ui.answers[jobs]]
    ui.first = {jobs: running}
    found = cost_of(ui.address, TAG)
    assert found is not None
    assert found.core_seconds == 18.0
    assert ui.asked.count(jobs) == 2


def test_a_job_that_goes_on_is_not_waited_for_until_it_ends(ui: Ui) -> None:
    for each in ui.answers[f"{APPLICATIONS}/app-1/jobs"]:
        each["status"] = "RUNNING"
    found = cost_of(ui.address, TAG)
    assert found is not None
    assert found.core_seconds == 18.0


def test_an_application_of_its_own_counts_as_a_whole(ui: Ui) -> None:
    found = cost_of(f"{ui.address}/", None)
    assert found is not None
    assert found.core_seconds == 118.0


def test_an_attempt_without_jobs_cost_nothing(ui: Ui) -> None:
    assert cost_of(ui.address, "retrofill-attempt-8") == Cost(
        core_seconds=0.0, shuffle_bytes=0, rows_read=0, rows_written=0
    )


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {APPLICATIONS: []},
        {APPLICATIONS: [{"id": "a"}, {"id": "b"}]},
        {APPLICATIONS: "?"},
        {APPLICATIONS: [{"id": "app-1"}], f"{APPLICATIONS}/app-1/jobs": [{"no": "stages"}]},
    ],
)
def test_what_is_not_understood_is_unknown_and_not_asked_again_for_a_while(ui: Ui, answers: dict[str, Any]) -> None:
    ui.answers = answers
    assert cost_of(ui.address, None) is None
    asked = len(ui.asked)
    assert cost_of(ui.address, None) is None
    assert len(ui.asked) == asked > 0


def test_a_ui_that_hangs_delays_an_end_once_and_not_for_long(ui: Ui, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "SECONDS", 0.2)
    ui.hangs = True
    began = time.monotonic()
    assert cost_of(ui.address, TAG) is None
    assert cost_of(ui.address, TAG) is None
    assert time.monotonic() - began < 5
    assert len(ui.asked) == 1


def test_without_an_address_nothing_is_asked() -> None:
    assert cost_of(None, TAG) is None


def test_the_runs_of_a_range_share_its_cost() -> None:
    whole = Cost(core_seconds=10.0, shuffle_bytes=9, rows_written=4)
    assert whole.shared_by(4) == Cost(core_seconds=2.5, shuffle_bytes=2, rows_written=1)
