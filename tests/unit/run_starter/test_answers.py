"""Answers of a host to its drivers, and that one that has hung up disturbs nothing."""

from __future__ import annotations

import json
import queue
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.unit.driver.pooled import Recorder, launch

from run_starter.executors.answers import Answers
from run_starter.executors.submission import Submitted, handshake

OWN, OTHER = "a" * 64, "b" * 64


class Store(Recorder):
    """Has all code."""

    def code(self, sha256: str, *, whole: bool) -> dict[str, str]:
        return {"folder": f"/code/{sha256}"}


def with_code() -> Any:
    given = launch(1)
    code = given.pipeline.code.model_copy(update={"sha256": OWN, "root": "/"})
    return given.__class__(**{**vars(given), "pipeline": given.pipeline.model_copy(update={"code": code})})


def test_a_driver_gets_the_code_of_its_own_pipeline_only() -> None:
    said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    answers = Answers(Store(), with_code(), said.put)
    assert answers.hear("code", OWN)
    assert said.get(timeout=10) == {"code": {"folder": f"/code/{OWN}"}}
    assert answers.hear("code", OTHER)
    assert said.get(timeout=10) == {"code": {"error": f"code {OTHER} is not that of pipeline p"}}


def test_a_driver_that_has_hung_up_is_told_nothing(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    submitted = Submitted(None, None, ours, "", tmp_path, True)  # type: ignore[arg-type]
    assert submitted.connect(ours)
    assert submitted.send({"begin": 1.0})
    assert theirs.recv(100) == b'{"begin": 1.0}\n'
    theirs.close()
    assert not submitted.send({"begin": 2.0})
    ours.close()


def test_what_a_driver_says_while_it_is_answered_is_heard(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    said = [{"token": "t"}, *({"event": n} for n in range(100))]
    theirs.sendall("".join(f"{json.dumps(each)}\n" for each in said).encode())
    theirs.shutdown(socket.SHUT_WR)
    lines = handshake(ours, "t")
    assert lines is not None
    submitted = Submitted(None, None, ours, "", tmp_path, True)  # type: ignore[arg-type]
    assert submitted.connect(ours)
    heard = []
    for line in lines:
        heard.append(json.loads(line))
        assert submitted.send({"ack": 1})
    assert heard == said[1:]
    for each in (lines, ours, theirs):
        each.close()


def test_a_driver_that_reads_nothing_is_ended_though_a_message_is_on_its_way(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, text=True
    )
    submitted = Submitted(None, process, ours, "", tmp_path, True)  # type: ignore[arg-type]
    assert submitted.connect(ours)
    sent: queue.SimpleQueue[bool] = queue.SimpleQueue()
    sending = threading.Thread(target=lambda: sent.put(submitted.send({"begin": "x" * 10_000_000})), daemon=True)
    sending.start()
    assert theirs.recv(1) == b"{"
    ending = threading.Thread(target=submitted.end, daemon=True)
    ending.start()
    assert process.wait(20) == -15
    ending.join(20)
    assert not ending.is_alive()
    submitted.hang_up()
    assert sent.get(timeout=20) is False
    ours.close()
    theirs.close()
