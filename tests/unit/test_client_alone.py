"""The client by HTTP is imported without any package, as beside an orchestrator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from retrofill_client import BadRequest, Client

SHARED = Path(__file__).parents[2] / "shared"
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from retrofill_client import Client, Unreachable
try:
    Client(url="http://127.0.0.1:1", token="t").pipelines.list()
except Unreachable as e:
    print(e)
"""


def test_it_needs_the_standard_library_only() -> None:
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(SHARED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout) == ("", "http://127.0.0.1:1 cannot be reached: [Errno 111] Connection refused\n")


@pytest.mark.parametrize("url", ["", "retrofill.example.com", "ftp://retrofill.example.com", "https://"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match="is no address: use one like https://"):
        Client(url=url)


def test_a_token_without_an_address_is_refused() -> None:
    with pytest.raises(BadRequest, match="a token without url"):
        Client(token="t")
