"""Output streams as users have them: other encodings, full disks, readers that leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-c", "from retrofill_tools.cli.main import run; run()"]
NAME = "\u65e5\u672c \u2013 \xe9"


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, Any]:
    """The folder and the environment of a command."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("RETROFILL_")}
    return {"cwd": tmp_path, "env": {**mine, "RETROFILL_OPENLINEAGE_NAMESPACE": NAME, "COLUMNS": "200"}}


def test_a_terminal_that_is_not_utf8_gets_what_it_can_show(alone: dict[str, Any]) -> None:
    alone["env"]["PYTHONIOENCODING"] = "latin-1"
    shown = subprocess.run([*COMMAND, "config"], capture_output=True, check=True, **alone).stdout
    assert "\\u65e5\\u672c \\u2013 \xe9".encode("latin-1") in shown
    document = subprocess.run([*COMMAND, "config", "--json"], capture_output=True, check=True, **alone).stdout
    assert NAME in json.dumps(json.loads(document), ensure_ascii=False)


def test_a_full_disk_is_one_line(alone: dict[str, Any]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*COMMAND, "config"], stdout=full, stderr=subprocess.PIPE, check=False, **alone)
    assert (done.returncode, done.stderr) == (1, b"retrofill: [Errno 28] No space left on device\n")


def test_a_reader_that_leaves_is_no_error_to_show(alone: dict[str, Any]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        done = subprocess.run([*COMMAND, "config"], stdout=gone, stderr=subprocess.PIPE, check=False, **alone)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_command_whose_output_nobody_wants_has_done_its_work(alone: dict[str, Any]) -> None:
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "config"]
    done = subprocess.run(closed, stderr=subprocess.PIPE, check=False, **alone)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("settings", "command", "said"),
    [
        ({"RETROFILL_PARTITIONS": "abc"}, ["recover", "--yes"], b"RETROFILL_PARTITIONS"),
        ({"RETROFILL_KAFKA_PORT": "65535"}, ["up"], b"RETROFILL_KAFKA_PORT"),
    ],
)
def test_a_wrong_setting_is_one_line(
    alone: dict[str, Any], settings: dict[str, str], command: list[str], said: bytes
) -> None:
    alone["env"].update(settings)
    done = subprocess.run([*COMMAND, *command], capture_output=True, check=False, **alone)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1)
    assert said in done.stderr
