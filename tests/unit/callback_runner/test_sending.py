"""One request over real sockets: its address, its timeouts, and which outcomes are uncertain."""

import socket
import ssl
import subprocess
import threading
import time
from contextlib import suppress

import httpcore
import httpx
import pytest
from tests.support.receiver import Answer, receiving

from callback_runner.decide import Raised, Returned
from callback_runner.interruptible import CutOff, Permit, ThreadTry
from callback_runner.sender import Allowed, NotConnected, Refused, Sender

LOOPBACK = Allowed(["127.0.0.1"])
BY_NAME = Allowed(["hooks.example"])
OTHER = {"IPv4": "127.0.0.2", "IPv6": "::1"}


@pytest.fixture
def receiver():
    with receiving() as made:
        yield made


class Resolver:
    """Returns one address after the other and counts the lookups."""

    def __init__(self, *addresses):
        self.addresses = list(addresses)
        self.asked = []

    def __call__(self, host, port, **_):
        self.asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.addresses.pop(0), port))]


class Several(Resolver):
    """Returns all addresses at once, with a repeated one as for two protocols."""

    def __call__(self, host, port, **_):
        self.asked.append(host)
        found = [*self.addresses, self.addresses[0]]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]


def permit(seconds=20.0, lease=60.0):
    until = time.monotonic() + lease
    return Permit(seconds, lambda: until)


# Made once and here: reading the certificates of the system may take longer than a test's permit.
TLS = httpx.create_ssl_context()


def sender(allowed=LOOPBACK, resolve=socket.getaddrinfo, tls=TLS):
    return Sender(allowed, tls, resolve)


def post(sender, url, allowed):
    return sender.post(url, {"content-type": "application/json"}, b"{}", allowed)


def test_a_name_is_resolved_once_and_the_checked_address_is_called(receiver):
    resolve = Resolver("127.0.0.1", "127.0.0.2")
    url = receiver.url("/x?y=%C3%A4", "hooks.example")
    assert post(sender(resolve=resolve), url, permit()).status == 204
    assert resolve.asked == ["hooks.example"]
    (request,) = receiver.requests
    assert request.headers["host"] == f"hooks.example:{receiver.port}"
    assert request.path == "/x?y=%C3%A4"


@pytest.mark.parametrize(
    ("host", "address", "expected"),
    [
        ("[::1]", "::1", "[::1]"),
        ("[0:0:0:0:0:0:0:1]", "::1", "[0:0:0:0:0:0:0:1]"),
        ("B\u00dcCHER.example", "::1", "xn--bcher-kva.example"),
        ("hooks.example.", "127.0.0.1", "hooks.example."),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_the_host_is_named_as_http_wants_it(host, address, expected):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as server:
        server.bind((address, 0))
        server.listen()
        heard = []

        def talk(connection):
            heard.append(connection.recv(65536))
            connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

        serve(server, talk)
        number = server.getsockname()[1]
        allowed = Allowed(["127.0.0.1", "::1"])
        url = f"http://{host}:{number}/hook"
        assert post(sender(allowed, Resolver(address)), url, permit()).status == 204
    (said,) = heard
    assert f"\r\nhost: {expected}:{number}\r\n".encode() in said.lower()


def test_a_name_with_a_private_address_is_refused(receiver):
    allowed = permit()
    with pytest.raises(Refused, match=r"hooks\.example has the address 127\.0\.0\.1"):
        post(sender(Allowed([]), Resolver("127.0.0.1")), receiver.url("/", "hooks.example"), allowed)
    assert not allowed.begun
    assert receiver.requests == []


def test_proxies_of_the_environment_are_not_used(receiver, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert post(sender(), receiver.url("/"), permit()).status == 204


def test_without_a_connection_nothing_has_begun():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    allowed = permit()
    with pytest.raises(NotConnected, match="no connection to"):
        post(sender(), f"http://127.0.0.1:{port}/", allowed)
    with pytest.raises(NotConnected, match=r"nowhere\.invalid was not found"):
        post(sender(), "http://nowhere.invalid/", allowed)
    assert not allowed.begun


@pytest.fixture
def listening():
    """A server that passes its connections to the test."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def serve(server, talk):
    def run():
        connection, _ = server.accept()
        with connection:
            talk(connection)

    threading.Thread(target=run, daemon=True).start()
    return f"http://127.0.0.1:{server.getsockname()[1]}/"


def full(server):
    """No connection is taken: the queue of ``server`` is full."""
    for _ in range(2):
        waiting = socket.socket(server.family)
        waiting.setblocking(False)
        waiting.connect_ex(server.getsockname())
        yield waiting


def closed(server):
    server.close()
    yield server


def mute(server):
    """Connections are taken, and nothing is said."""
    yield server


def closing(server):
    """Connections are closed at once."""

    def run():
        with suppress(OSError):  # the end of the test
            while True:
                server.accept()[0].close()

    threading.Thread(target=run, daemon=True).start()
    yield server


@pytest.fixture
def bad_address(port):
    """Serves the port at another address, in one of these manners."""
    made = []

    def start(manner, address):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        server = socket.create_server((address, port), family=family, backlog=0)
        made.extend([server, *manner(server)])

    yield start
    for each in made:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)  # wakes up a thread that accepts
        each.close()


@pytest.fixture(scope="module")
def served(certificate):
    """Receivers at 127.0.0.1, without and with TLS."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    with receiving(host="127.0.0.1") as plain, receiving(tls, host="127.0.0.1") as secure:
        yield {"http": plain, "https": secure}


@pytest.fixture
def port(served, scheme):
    return served[scheme].port


NOT_TAKEN = [("http", closed), ("http", full), ("https", closed), ("https", full), ("https", mute), ("https", closing)]


@pytest.mark.parametrize("family", OTHER)
@pytest.mark.parametrize(
    ("scheme", "manner", "before"), [*((*each, 1) for each in NOT_TAKEN), ("http", full, 3), ("https", mute, 3)]
)
def test_an_address_that_takes_no_connection_leaves_time_for_the_next(
    served, certificate, bad_address, scheme, manner, family, before
):
    first = [OTHER[family], "127.0.0.3", "127.0.0.4"][:before]
    for address in first:
        bad_address(manner, address)
    tls = ssl.create_default_context(cafile=certificate / "cert.pem")
    url = served[scheme].url("/several", "hooks.example").replace("http:", f"{scheme}:")
    tried = sender(BY_NAME, Several(*first, "127.0.0.1"), tls)
    assert post(tried, url, permit(0.5 * (before + 1))).status == 204


@pytest.mark.parametrize(("scheme", "manner"), [*NOT_TAKEN[1:2], NOT_TAKEN[4]])
def test_addresses_that_all_hang_are_cut_off_in_time_and_nothing_has_begun(port, bad_address, scheme, manner):
    for address in OTHER.values():
        bad_address(manner, address)
    allowed = permit(0.4)
    with pytest.raises(CutOff):
        post(sender(BY_NAME, Several(*OTHER.values())), f"{scheme}://hooks.example:{port}/", allowed)
    assert not allowed.begun


@pytest.mark.parametrize("scheme", ["http"])
def test_after_an_address_that_took_the_request_and_never_answers_the_next_try_begins_with_another(
    served, port, bad_address, scheme
):
    bad_address(mute, "127.0.0.2")
    tried = sender(BY_NAME, Several("127.0.0.2", "127.0.0.1"))
    url = f"{scheme}://hooks.example:{port}/rotated"
    allowed = permit(0.4)
    with pytest.raises(CutOff):
        tried.post(url, {}, b"{}", allowed)
    assert allowed.begun
    assert served[scheme].got("/rotated") == []  # it may have arrived at the first
    assert tried.post(url, {}, b"{}", permit(), attempt=2).status == 204


def test_a_connection_that_breaks_after_the_request_leaves_it_uncertain(listening):
    allowed = permit()
    # It depends on whether all of the request had arrived when the other side closed.
    with pytest.raises((httpcore.RemoteProtocolError, httpcore.ReadError)):
        post(sender(), serve(listening, lambda connection: connection.recv(10_000)), allowed)
    assert allowed.begun


def drip(first):
    def talk(connection):
        connection.recv(10_000)
        connection.sendall(first)
        try:
            while True:
                connection.sendall(b"x")
                time.sleep(0.02)  # simulates a slow server
        except OSError:
            pass

    return talk


def test_a_header_that_drips_is_cut_off_in_time(listening):
    allowed = permit(0.5)
    with pytest.raises(CutOff):
        post(sender(), serve(listening, drip(b"HTTP/1.1 200 OK\r\nx: ")), allowed)
    assert allowed.begun


def test_a_body_that_drips_does_not_make_the_answer_uncertain(listening):
    head = b"HTTP/1.1 500 Broken\r\ncontent-length: 100000\r\n\r\nsorry "
    answer = post(sender(), serve(listening, drip(head)), permit(0.5))
    assert answer.status == 500
    assert answer.body.startswith(b"sorry x")


def test_a_status_is_not_lost_to_a_body_that_does_not_end(listening):
    gone = b"HTTP/1.1 410 Gone\r\nRetry-After: 7\r\n\r\ngone"

    def talk(connection):
        connection.recv(65536)
        connection.sendall(gone)
        connection.recv(1)  # until the other end closes

    answer = post(sender(), serve(listening, talk), permit(20))
    assert (answer.status, answer.headers["retry-after"], answer.body) == (410, "7", b"gone")


def test_of_a_long_body_the_beginning_is_read(receiver):
    url = receiver.answer("/long", Answer(500, body=b"x" * 1_000_000))
    assert post(sender(), url, permit()).body == b"x" * 2000


def test_a_server_that_does_not_shake_hands_is_cut_off_in_time(listening):
    def silent(connection):
        while connection.recv(10_000):
            pass

    allowed = permit(0.5)
    with pytest.raises(CutOff):
        post(sender(), serve(listening, silent).replace("http:", "https:"), allowed)
    assert not allowed.begun


def test_after_its_lease_a_process_that_slept_sends_nothing(receiver):
    allowed = permit(lease=-1.0)
    with pytest.raises(CutOff):
        post(sender(), receiver.url("/"), allowed)
    assert not allowed.begun
    assert receiver.requests == []


def test_a_name_server_that_hangs_is_left_alone_and_nothing_is_sent_later(receiver):
    hold, resolved = threading.Event(), threading.Event()

    def slow(host, port, **more):
        hold.wait(20)
        resolved.set()
        return socket.getaddrinfo(host, port, **more)

    allowed = permit()
    trying = ThreadTry(lambda p: post(sender(resolve=slow), receiver.url("/"), p) and Returned(), allowed, "test")
    assert not trying.wait(0.05)
    trying.kill()
    assert trying.finish() is None
    assert not trying.begun
    hold.set()
    assert resolved.wait(20)
    assert trying.wait(20)
    assert trying.finish() is None
    assert receiver.requests == []


def test_what_a_thread_raises_is_a_failed_try():
    def broken(permit):
        permit.begin()
        raise ConnectionResetError("gone")

    trying = ThreadTry(broken, permit(), "test")
    assert trying.wait(20)
    assert trying.finish() == Raised("ConnectionResetError: gone", uncertain=True)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for hooks.example."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=hooks.example"
    names = ["-addext", "subjectAltName=DNS:hooks.example", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*command.split(), *names], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(("host", "fits"), [("hooks.example", True), ("other.example", False)])
def test_tls_verifies_the_name_though_the_address_is_pinned(certificate, host, fits):
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    client_side = ssl.create_default_context(cafile=certificate / "cert.pem")
    with receiving(server_side) as receiver:
        url = receiver.url("/tls", host).replace("http:", "https:")
        tried = sender(resolve=Resolver("127.0.0.1"), tls=client_side)
        if fits:
            assert post(tried, url, permit()).status == 204
        else:
            with pytest.raises(NotConnected, match="certificate verify failed"):
                post(tried, url, permit())
            assert receiver.requests == []
