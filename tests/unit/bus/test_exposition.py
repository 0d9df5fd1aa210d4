"""A service's own pages, beside its probes, and the log page of a run-starter."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from retrofill_core.attempt_logs import Position, path_of
from retrofill_core.bus.exposition import Exposition
from retrofill_tools.client.attempts import OnDisk, OverHttp, Source, Unreachable, first_with_log, lines
from run_starter.executors.logs import LogPage

SECRET = "/logs/0123/"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    http = Exposition("127.0.0.1", 0)
    url = http.serve(SECRET, LogPage(tmp_path))
    http.start(dict, lambda: {"a": "not yet"})
    yield url
    http.stop()


def write(folder: Path, attempt_id: int, *texts: str) -> None:
    for part, text in enumerate(texts):
        path = path_of(folder, attempt_id, part)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_a_log_is_the_same_over_http_and_on_disk(served: str, tmp_path: Path) -> None:
    write(tmp_path, 7, "one\ntwo\n", "three\npassword=geheim\n")
    for source in (OnDisk(tmp_path, 7), OverHttp(served, 7)):
        assert list(lines(source, lambda: False)) == ["one", "two", "three", "password=***"]
        assert source.read(Position(0, 4)) == (b"two\n", Position(0, 8))
    assert first_with_log([OnDisk(tmp_path, 8), OverHttp(served, 8)]) == (None, None)


def test_a_reader_that_follows_gets_what_is_written_meanwhile(served: str, tmp_path: Path) -> None:
    write(tmp_path, 7, "one\nhal")
    texts = ["one\nhalf\n", "one\nhalf\nlast"]

    def goes_on() -> bool:
        if texts:
            write(tmp_path, 7, texts.pop(0))
        return bool(texts)

    assert list(lines(OverHttp(served, 7), goes_on)) == ["one", "half", "last"]


def test_only_logs_are_served_and_only_to_who_knows_the_secret(served: str, tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "secret.log").write_text("x")
    base = served.removesuffix(SECRET)
    for path in (f"{SECRET}..%2fsecret.log", f"{SECRET}0", f"{SECRET}7/", "/logs/0124/7", "/logs/"):
        assert httpx.get(base + path).status_code == 404, path
    assert httpx.get(f"{served}7", params={"at": "x"}).status_code == 400
    assert SECRET not in httpx.get(f"{base}/nowhere").text
    assert httpx.get(f"{base}/readyz").status_code == 503
    assert httpx.get(f"{base}/metrics").status_code == 200


def test_a_host_that_does_not_answer_is_named_without_its_secret() -> None:
    with pytest.raises(Unreachable) as refused:
        OverHttp("http://127.0.0.1:1/logs/0123/", 7).read(Position())
    assert str(refused.value).startswith("http://127.0.0.1:1 does not answer: ")
    assert "0123" not in str(refused.value)
    assert first_with_log([OverHttp("http://127.0.0.1:1/logs/0123/", 7)])[1] == str(refused.value)


def test_not_even_a_traceback_shows_the_secret() -> None:
    source = OverHttp("http://127.0.0.1:1/logs/0123/", 7)
    source._client = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(500)))
    with pytest.raises(Unreachable) as refused:
        source.read(Position())
    shown = "".join(traceback.format_exception(refused.value))
    assert "does not answer: status 500" in shown
    assert "0123" not in shown


class Shaky:
    """A host that does not answer at first."""

    def __init__(self, source: Source, failures: int) -> None:
        self._source, self._failures = source, failures

    def read(self, at: Position) -> tuple[bytes, Position] | None:
        self._failures -= 1
        if self._failures >= 0:
            raise Unreachable("http://127.0.0.1:1 does not answer: refused")
        return self._source.read(at)


def test_a_host_that_does_not_answer_for_a_while_is_waited_for(tmp_path: Path) -> None:
    write(tmp_path, 7, "one\n")
    live = [True, True, False]
    assert list(lines(Shaky(OnDisk(tmp_path, 7), 2), lambda: live.pop(0))) == ["one"]
    with pytest.raises(Unreachable):
        list(lines(Shaky(OnDisk(tmp_path, 7), 9), lambda: False))


def test_where_others_reach_a_service_that_listens_everywhere() -> None:
    everywhere = Exposition("0.0.0.0", 0)
    assert "0.0.0.0" not in everywhere.serve(SECRET, LogPage(Path()))
    named = Exposition("0.0.0.0", 0, "starter.example")
    assert named.serve(SECRET, LogPage(Path())).startswith("http://starter.example:")
    for each in (everywhere, named):
        each._server.server_close()
