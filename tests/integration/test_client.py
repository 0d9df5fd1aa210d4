"""The Python client: every method by HTTP and by Kafka, against one installation, with the same results and errors."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Any

import pytest
from tests.support.console import start_console
from tests.support.definitions import daily
from tests.support.installation import Installation
from tests.support.proxy import Proxy
from tests.support.servers import Servers
from tests.support.terminal import point_at

from retrofill_client import (
    BackfillFailed,
    BadRequest,
    Client,
    NotAllowed,
    NotFound,
    Refused,
    RetrofillError,
    WaitTimeout,
)
from retrofill_core.setting_types import Role
from retrofill_tools.client.tokens import add, make

# Each way has a pipeline and a year of its own: an output belongs to one interval of one pipeline.
YEARS = {"by_http": 2012, "by_kafka": 2013}
FAILING = ",".join(f"{year}-08-0{day}" for year in YEARS.values() for day in (3, 4))
HANGING = ",".join(f"{year}-09-0{day}" for year in YEARS.values() for day in (2, 3))


class LosesAnAnswer(Proxy):
    """Cuts the connection of the first answer."""

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__(target)
        self.lost = b""

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        if not self.lost and source.getpeername() == self._target:
            self.lost = source.recv(65536)
            self.cut()
            self.mend()
            return
        super()._pass_on(source, sink)


@pytest.fixture(scope="module")
def place(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    made = servers.installation()
    made.start("backfill-planner")
    out = tmp_path_factory.mktemp("out")
    made.start("instant-starter", INSTANT_FAIL=FAILING, INSTANT_HANG=HANGING, INSTANT_OUT=str(out))
    for name in YEARS:
        made.apply(daily(name, max_active_runs=4, tasks=("extract", "load")))
    yield made
    made.close()


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The file of tokens, and one in it."""
    file, (secret, token) = tmp_path_factory.mktemp("tokens") / "tokens", make("ci", Role.PUBLISH)
    add(file, token)
    return str(file), secret


@pytest.fixture(scope="module")
def url(place: Installation, token: tuple[str, str]) -> str:
    return start_console(place, RETROFILL_CONSOLE_TOKENS=token[0]).url


@pytest.fixture(params=YEARS)
def pipeline(request: pytest.FixtureRequest) -> str:
    """The name of the way, and of its pipeline."""
    return str(request.param)


@pytest.fixture
def year(pipeline: str) -> int:
    return YEARS[pipeline]


@pytest.fixture
def client(pipeline: str, place: Installation, url: str, token: Any, monkeypatch: pytest.MonkeyPatch) -> Client:
    point_at(place, monkeypatch)
    return Client(url=url, token=token[1]) if pipeline == "by_http" else Client()


def test_a_backfill_is_requested_and_waited_for(client: Client, pipeline: str, year: int) -> None:
    seen: list[str] = []
    made = client.backfills.create(pipeline, f"{year}-01-01", date(year, 1, 3), max_active_runs=2, conf={"a": ["ä", 1]})
    done = made.wait(60, on_progress=lambda each: seen.append(each.state))
    assert (done.id, done.pipeline, done.state, done.ended, seen[-1]) == (
        made.id,
        pipeline,
        "succeeded",
        True,
        "succeeded",
    )
    assert (done.runs, done.by_state, done.max_active_runs, done.timezone) == (3, {"succeeded": 3}, 2, "UTC")
    assert (done.range_start, done.range_end) == (datetime(year, 1, 1, tzinfo=UTC), datetime(year, 1, 4, tzinfo=UTC))
    assert done.document["conf"] == {"a": ["ä", 1]}
    assert pipeline == "by_kafka" or done.triggered_by == "ci"
    runs = client.runs.list(done.id, states=["succeeded"], limit=2)
    assert [(each.interval_start.day, each.state, each.attempt) for each in runs] == [
        (1, "succeeded", 1),
        (2, "succeeded", 1),
    ]
    run = client.runs.get(runs[0].id)
    assert (run.interval_end, run.message) == (datetime(year, 1, 2, tzinfo=UTC), None)
    assert run.document["backfill_id"] == done.id
    assert done.id in [each.id for each in client.backfills.list(pipeline, states=["succeeded", "failed"])]
    assert client.backfills.list(pipeline, states=["paused"]) == []


def test_the_same_id_again_creates_nothing(client: Client, pipeline: str, year: int) -> None:
    id = f"once-{uuid.uuid4()}"
    first = client.backfills.create(pipeline, f"{year}-02-01", f"{year}-02-02", id=id).wait(60)
    again = client.backfills.create(pipeline, f"{year}-02-01", f"{year}-02-02", id=id)
    assert (again.id, again.requested_at, again.runs) == (id, first.requested_at, 2)
    with pytest.raises(RetrofillError, match="id"):
        client.backfills.create(pipeline, f"{year}-02-01", f"{year}-02-03", id=id)


def test_a_dry_run_says_what_would_be(client: Client, pipeline: str, year: int) -> None:
    client.backfills.create(pipeline, f"{year}-03-01", f"{year}-03-01").wait(60)
    plan = client.backfills.dry_run(pipeline, f"{year}-03-01", f"{year}-03-03")
    assert (plan.pipeline, plan.runs, plan.skipped) == (pipeline, 2, {"already exists": 1})
    assert plan.seconds is not None and plan.range_end == datetime(year, 3, 4, tzinfo=UTC)
    by_moments = client.backfills.dry_run(
        pipeline, intervals=[datetime(year, 3, 5, tzinfo=UTC), f"{year}-03-07"], reprocess="completed", backwards=True
    )
    assert by_moments.runs == 2
    with pytest.raises(Refused, match="already") as refused:
        client.backfills.dry_run(pipeline, f"{year}-03-01", f"{year}-03-01")
    assert refused.value.reason == "nothing_to_run"


def test_a_failed_one_is_an_error_with_its_reason_and_retried(client: Client, pipeline: str, year: int) -> None:
    made = client.backfills.create(pipeline, f"{year}-08-02", f"{year}-08-04")
    with pytest.raises(
        BackfillFailed, match=rf"^backfill {made.id} of {pipeline} failed \(2 failed, 1 succeeded\); first: "
    ):
        made.wait(60)
    failed = made.refresh()
    assert [each.interval_start.day for each in failed.failures] == [3, 4]
    assert client.runs.get(failed.failures[0].run_id).message == failed.failures[0].message
    again = failed.retry()
    assert (again.id != made.id, again.runs) == (True, 2)
    with pytest.raises(BackfillFailed) as e:
        again.wait(60)
    assert e.value.backfill.by_state == {"failed": 2}


def test_one_that_hangs_is_paused_resumed_and_cancelled(client: Client, pipeline: str, year: int) -> None:
    made = client.backfills.create(pipeline, f"{year}-09-02", f"{year}-09-09", max_active_runs=2)
    with pytest.raises(WaitTimeout, match=rf"backfill {made.id} is still running after 0.3 s") as e:
        made.wait(0.3)
    assert e.value.backfill.id == made.id
    assert made.pause().state == "paused"
    assert made.resume().state == "running"
    assert client.backfills.resume(made.pause().id, budget={"failed_runs": 9}).document["budget"] == {"failed_runs": 9}
    with pytest.raises(Refused, match=f"{year}-09-02 – {year}-09-09") as refused:
        client.backfills.create(pipeline, f"{year}-09-05", f"{year}-09-06", reprocess="completed")
    assert refused.value.reason == "overlap"
    assert made.cancel().state in ("cancelling", "cancelled")
    with pytest.raises(BackfillFailed, match=" cancelled "):
        made.wait(60)


def test_a_review_is_published_undone_and_discarded(client: Client, pipeline: str, year: int) -> None:
    reviewed = client.backfills.create(pipeline, f"{year}-05-01", f"{year}-05-02", review=True).wait(60)
    assert (reviewed.state, reviewed.settled, reviewed.ended) == ("in_review", True, False)
    with pytest.raises(Refused, match="comparing reads the outputs by Spark Connect"):
        reviewed.diff()
    assert reviewed.publish().wait(60).state == "succeeded"
    with pytest.raises(Refused, match=r"backfill .* was approved: there is nothing to compare"):
        reviewed.diff()
    id = f"undo-{uuid.uuid4()}"
    undone = reviewed.undo(id=id).wait(60)
    assert (undone.id, undone.document["undoes"]) == (id, reviewed.id)
    other = client.backfills.create(pipeline, f"{year}-06-01", f"{year}-06-01", review=True).wait(60)
    other.discard()
    with pytest.raises(BackfillFailed, match="cancelled"):
        other.wait(60)


def test_pipelines(client: Client, pipeline: str) -> None:
    listed = client.pipelines.list()
    assert [each.name for each in listed] == ["by_http", "by_kafka"]
    assert client.pipelines.get(pipeline) == next(each for each in listed if each.name == pipeline)
    assert listed[0].tasks == ("extract", "load")


Call = Callable[[Client], Any]
WRONG: dict[str, tuple[Call, type[RetrofillError], str]] = {
    "an unknown backfill": (lambda c: c.backfills.get("none ä?"), NotFound, "there is no backfill 'none ä\\?'"),
    "an unknown run": (lambda c: c.runs.get(999_999_999), NotFound, "there is no run 999999999"),
    "an unknown pipeline": (lambda c: c.pipelines.get("by_htp"), NotFound, "there is no pipeline 'by_htp'"),
    "runs of none": (lambda c: c.runs.list("none"), NotFound, "there is no backfill 'none'"),
    "a dry run of none": (lambda c: c.backfills.dry_run("none", "2020-01-01", "2020-01-02"), NotFound, "no pipeline"),
    "a request for none": (lambda c: c.backfills.create("none", "2020-01-01", "2020-01-02"), Refused, "no pipeline"),
    "a command to none": (lambda c: c.backfills.pause("none"), Refused, "there is no backfill with this id"),
    "a retry of none": (lambda c: c.backfills.retry("none"), NotFound, "there is no backfill 'none'"),
    "no range": (lambda c: c.backfills.create("by_http"), BadRequest, "it has no 'from' and 'to'"),
    "half a range": (lambda c: c.backfills.create("by_http", "2020-01-01"), BadRequest, "it has no 'to'"),
    "no date": (lambda c: c.backfills.create("by_http", "x", "2020-01-01"), BadRequest, "neither a date like"),
    "no zone": (lambda c: c.backfills.create("by_http", datetime(2020, 1, 1)), BadRequest, "has no time zone"),
    "no number": (
        lambda c: c.backfills.dry_run("p", "2020-01-01", "2020-01-02", batch_size=0),
        BadRequest,
        "batch_size",
    ),
    "an unknown option": (
        lambda c: c.backfills.create("p", "2020-01-01", "2020-01-02", revew=True),  # type: ignore[call-arg]
        BadRequest,
        "revew",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_an_error_of_one_line(client: Client, wrong: str) -> None:
    call, kind, said = WRONG[wrong]
    with pytest.raises(kind, match=said) as e:
        call(client)
    assert type(e.value) is kind
    assert "\n" not in str(e.value)


def test_a_request_whose_answer_is_lost_is_sent_again_under_its_id(place: Installation, url: str, token: Any) -> None:
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    id = f"lost-{uuid.uuid4()}"
    with LosesAnAnswer((host, int(port))) as proxy:
        client = Client(url=f"http://127.0.0.1:{proxy.port}", token=token[1])
        made = client.backfills.create("by_http", "2012-10-01", "2012-10-02", id=id)
    assert proxy.lost.startswith(b"HTTP/1.1 201")
    assert (made.id, made.runs) == (id, 2)
    assert place.value("SELECT count(*) FROM backfill WHERE id = %s", id) == 1


def test_a_wrong_token_and_a_role_that_does_not_allow_it_are_said(url: str, token: Any) -> None:
    with pytest.raises(NotAllowed, match="this token is unknown or was revoked"):
        Client(url=url, token="retrofill_none").backfills.list()
    with pytest.raises(NotAllowed, match="log in first"):
        Client(url=url).backfills.list()
