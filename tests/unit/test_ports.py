"""A held port is given to no other process until the server that it is reserved for listens."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Iterator

import psutil
import pytest
from tests.support.listening import listening

from retrofill.system.processes import STACK
from retrofill_tools.stack.ports import Reservations, held_port

# Linux: the range of ports that the kernel chooses from, per socket.
IP_LOCAL_PORT_RANGE = 51


@pytest.fixture(params=["held_port", "Reservations"])
def held(request: pytest.FixtureRequest) -> Iterator[int]:
    if request.param == "held_port":
        with held_port() as port:
            yield port
    else:
        with Reservations() as reserved:
            yield reserved.choose(45_000, None)


def only(port: int) -> socket.socket:
    """A socket for which the kernel can choose this port only."""
    made = socket.socket()
    made.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("I", port << 16 | port))
    return made


def test_a_held_port_is_given_to_nobody_but_who_names_it(held: int) -> None:
    for reuse in (0, 1):
        with only(held) as another, pytest.raises(OSError, match="in use"):
            another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            another.bind(("127.0.0.1", 0))
    with socket.create_server(("127.0.0.1", 0)) as server, only(held) as client, pytest.raises(OSError, match="assign"):
        client.connect(server.getsockname())
    with socket.socket() as careless, pytest.raises(OSError, match="in use"):
        careless.bind(("127.0.0.1", held))
    # Listen as Java and Postgres do, over IPv6 too.
    with socket.create_server(("127.0.0.1", held)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername()[1] == held
        assert [port for _, _, port in listening([psutil.Process()]) if port == held] == [held]


def test_a_kept_port_stays_with_its_process_while_nothing_listens() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={STACK: "a-stack"}) as owner:
        with Reservations() as reserved:
            kept = reserved.choose(46_000, None)
            reserved.keep(owner.pid, "a-stack")
        with Reservations() as another:
            assert another.choose(kept, kept) != kept
        owner.communicate()
    with Reservations() as later:
        assert later.choose(kept, None) == kept
