"""Each service's HTTP endpoints, scraped as Prometheus does and probed as Kubernetes does."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.support.definitions import alert, daily
from tests.support.installation import PARTITIONS, Installation, until
from tests.support.proxy import Proxy
from tests.support.replica import Replica
from tests.support.servers import Servers

SERVICES = ("backfill-planner", "instant-starter", "deadline-watcher", "callback-runner")
IDS = re.compile(r"(^|_)(id|run|backfill|deadline|attempt|partition|shard)(_|$)")


def get(made: Installation, replica: Replica, path: str) -> tuple[int, str]:
    """Returns status and body."""
    (ready,) = (made.settings.home / "run").glob(f"*.{replica.process.pid}.ready")
    url = json.loads(ready.read_text())["http"]
    try:
        with urllib.request.urlopen(url + path, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


@pytest.fixture(scope="module")
def busy(servers: Servers) -> Iterator[tuple[Installation, dict[str, Replica]]]:
    """All services, after a backfill whose deadlines were missed."""
    made = servers.installation()
    replicas = {name: made.start(name) for name in SERVICES}
    made.apply(daily(deadlines=[alert("past", "RUN_QUEUED_AT", -1, fire_if_past=True, callback="nobody")]))
    id = made.request("p", "2020-01-01", "2020-01-10")
    assert made.wait_state(id, "succeeded", "failed") == "succeeded"
    until(lambda: made.value("SELECT count(*) FROM callback WHERE state = 'failed'") == 10, "nobody was called")
    yield made, replicas
    made.close()


def samples(text: str) -> dict[str, float]:
    """The values, by metric name and labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_metrics_have_base_units_and_no_ids(busy: tuple[Installation, dict[str, Replica]]) -> None:
    made, replicas = busy
    for replica in replicas.values():
        status, text = get(made, replica, "/metrics")
        assert status == 200
        for family in text_string_to_metric_families(text):
            if not family.name.startswith("retrofill_"):
                continue
            assert family.documentation
            for sample in family.samples:
                assert not [label for label in sample.labels if IDS.search(label)], sample
                if family.type == "counter":
                    assert sample.name.endswith(("_total", "_created"))
            assert not re.search(r"_(ms|milliseconds|minutes|kb|mb)$", family.name)


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        (
            "backfill-planner",
            {
                "retrofill_backfill_requests_total{answer=BackfillPlanned}": 1,
                "retrofill_runs_planned_total{}": 10,
                "retrofill_deadlines_armed_total{reference=RUN_QUEUED_AT,state=armed}": 10,
                "retrofill_lag_messages{topic=pipelines}": 0,
                "retrofill_shards{state=owned}": PARTITIONS,
                "retrofill_shards{state=stopped}": 0,
            },
        ),
        (
            "instant-starter",
            {
                "retrofill_runs_claimed_total{}": 10,
                "retrofill_runs_ended_total{state=succeeded}": 10,
                "retrofill_runs{state=queued}": 0,
                "retrofill_runs{state=staged}": 0,
                "retrofill_drivers{state=busy}": 0,
            },
        ),
        (
            "deadline-watcher",
            {
                "retrofill_deadlines_decided_total{state=missed}": 10,
                "retrofill_deadline_detection_delay_seconds_count{}": 10,
                "retrofill_deadlines{state=armed}": 0,
            },
        ),
        ("callback-runner", {"retrofill_callbacks_total{kind=function,outcome=failed}": 10}),
    ],
)
def test_what_happened_is_counted(
    busy: tuple[Installation, dict[str, Replica]], service: str, expected: dict[str, float]
) -> None:
    made, replicas = busy
    found = samples(get(made, replicas[service], "/metrics")[1])
    assert {name: found.get(name) for name in expected} == expected


def test_a_service_is_healthy_and_ready(busy: tuple[Installation, dict[str, Replica]]) -> None:
    made, replicas = busy
    for replica in replicas.values():
        assert get(made, replica, "/healthz")[0] == 200
        status, body = get(made, replica, "/readyz")
        assert (status, json.loads(body)["postgres"], json.loads(body)["kafka"]) == (200, "ok", "ok")
        assert get(made, replica, "/nothing")[0] == 404


def test_one_that_is_cut_off_from_postgres_is_alive_but_not_ready(installation: Installation) -> None:
    dsn = installation.settings.dsn_of("deadline-watcher")
    parts = conninfo_to_dict(dsn)
    with Proxy((str(parts["host"]), int(str(parts["port"])))) as proxy:
        dsns = {"deadline-watcher": make_conninfo(dsn, port=proxy.port)}
        watcher = installation.start("deadline-watcher", RETROFILL_POSTGRES_SERVICE_DSNS=json.dumps(dsns))
        until(lambda: get(installation, watcher, "/readyz")[0] == 200, "it is ready")
        proxy.cut()

        def only_postgres_is_away() -> bool:
            status, body = get(installation, watcher, "/readyz")
            fields = json.loads(body)
            return status == 503 and fields["postgres"] != "ok" and fields["kafka"] == "ok"

        until(only_postgres_is_away, "it is not ready, and says why")
        assert get(installation, watcher, "/healthz")[0] == 200
        proxy.mend()
        until(lambda: get(installation, watcher, "/readyz")[0] == 200, "it is ready again")
