"""The values of the Helm chart: the settings and secrets that its pods get, what an upgrade
changes, and the mistakes that are refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import helm
from tests.support.helm_cases import ALL, CASES, FULL, HOOK, LEAST, MAKE, OWN, every_case, every_pod, rendered
from tests.support.manifests import Manifest, Pod, environment, of_kind, pods, strings

from retrofill_console.login import Login
from retrofill_core.contract.topics import CONSOLE, OPERATOR, SERVICES
from retrofill_core.setting_types import Role
from retrofill_core.settings import Settings

# Where helm is missing it is built, which takes minutes, so these tests are in the long tier.
pytestmark = pytest.mark.long


# settings and secrets


@every_case
def test_every_setting_exists(case: str) -> None:
    known = {f"RETROFILL_{name.upper()}{how}" for name in Settings.model_fields for how in ("", "_FILE")}
    for pod in every_pod(case):
        for container in pod.containers:
            names = [one["name"] for one in container["env"]]
            assert len(names) == len(set(names))
            assert {name for name in names if name.startswith("RETROFILL_")} <= known
    shared = of_kind(rendered(case), "ConfigMap")[FULL]["data"]
    assert set(shared) <= known


@every_case
def test_services_of_the_namespace_set_no_setting(case: str) -> None:
    """With service links, a Service named retrofill-postgres would set RETROFILL_POSTGRES_PORT to
    an address.
    """
    assert all(pod.spec["enableServiceLinks"] is False for pod in every_pod(case))


# The Secrets that each component may read: name and key.
KNOWS: dict[str, set[tuple[str, str]]] = {
    "backfill-planner": {("retrofill-postgres", "backfill-planner"), (OWN["backfill-planner"], "password")},
    "run-starter": {("retrofill-postgres", "run-starter"), (OWN["run-starter"], "password")},
    "deadline-watcher": {("retrofill-postgres", "deadline-watcher"), (OWN["deadline-watcher"], "password")},
    "callback-runner": {("retrofill-postgres", "callback-runner"), (OWN["callback-runner"], "password")},
    "init": {
        ("retrofill-init", "postgres-dsn"),
        ("retrofill-init", "postgres-service-dsns"),
        ("retrofill-init", "kafka-passwords"),
        (OWN["init"], "password"),
    },
    "cli": {("retrofill-postgres", "reader"), (OWN[OPERATOR], "password")},
    "console": {("retrofill-postgres", "reader"), (OWN[CONSOLE], "password")},
}


@every_case
def test_a_pod_is_given_its_own_secrets_only(case: str) -> None:
    for pod in every_pod(case):
        expected = set(KNOWS[pod.component])
        if case == "off":
            expected = {(secret, key) for secret, key in expected if key != "password"}
        if case == "all":
            expected |= {("cluster-ca", "ca.crt")}
            # Strimzi creates the users.
            expected -= {("retrofill-init", "kafka-passwords")}
        if case == "all" and pod.component in ("callback-runner", "cli"):
            expected |= {("hooks", "all")}
        if case == "all" and pod.component == "console":
            expected |= {("retrofill-console", "tokens")}
        assert pod.secrets == expected


@every_case
def test_no_manifest_has_a_secret_in_it(case: str) -> None:
    assert not of_kind(rendered(case), "Secret")
    secret = {f"RETROFILL_{name.upper()}" for name in Settings.model_fields if MAKE["is_secret"](name)}
    for each in of_kind(rendered(case), "ConfigMap").values():
        assert not secret & set(each["data"])
    for pod in every_pod(case):
        assert not secret & {one["name"] for one in pod.containers[0]["env"]}
    # A Postgres URL would contain a password.
    assert not [text for each in rendered(case) for text in strings(each) if "://" in text and "@" in text]


def told(pod: Pod, manifests: list[Manifest], folder: Path) -> Settings:
    """What the services' own ``Settings`` make of the environment that a kubelet would set."""
    secrets = {place: f"value-of-{place[0]}-{place[1]}" for place in pod.secrets}
    secrets |= {place: f"dbname={value}" for place, value in secrets.items() if "postgres" in "-".join(place)}
    dsns = {name: f"dbname=of-{name}" for name in SERVICES}
    secrets |= {
        ("retrofill-init", "postgres-service-dsns"): json.dumps(dsns),
        ("retrofill-init", "kafka-passwords"): '{"operator": "x"}',
        ("hooks", "all"): '{"pager": ["whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"]}',
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(pod, manifests, secrets, folder / pod.component).items():
            patch.setenv(name, value)
        return Settings()


@every_case
def test_what_a_pod_is_told_are_settings_as_they_are_meant(case: str, tmp_path: Path) -> None:
    for pod in every_pod(case):
        settings = told(pod, rendered(case), tmp_path)
        assert settings.topic_prefix == CASES[case].get("topicPrefix", "retrofill.")
        assert settings.partitions == CASES[case].get("partitions", 12)
        who = OPERATOR if pod.component == "cli" else pod.component
        own = settings.acting_as(who)
        if case != "off":
            assert own.kafka_username == OWN[who]
            assert own.kafka_password is not None
            assert own.kafka_password.get_secret_value() == f"value-of-{OWN[who]}-password"
        if pod.component == "console":
            login = Login(settings)  # raises if anybody could come in
            assert login.kind == ("proxy" if case == "off" else "token")
            viewer = login.viewer({"x-forwarded-user": "ada"}, {}, "10.1.2.3")
            assert (viewer and viewer.role) == (Role.OPERATE if case == "off" else None)
        if pod.component == "run-starter":
            assert settings.spark_remote == CASES[case]["spark"]["remote"]
        if case == "all":
            assert settings.max_conf_bytes == 2_000_000
            assert settings.lease_seconds == 7.5
            assert settings.callbacks == {"page": "flights.callbacks:page"}
            assert settings.kafka_ssl_ca is not None
            assert settings.kafka_ssl_ca.read_text() == "value-of-cluster-ca-ca.crt"
            assert settings.callback_slots == (3 if pod.component == "callback-runner" else 8)
        if pod.component == "init":
            assert settings.replication_factor == 3
            assert settings.kafka_acls is (case != "all")
            assert settings.kafka_sasl_mechanism == ("PLAIN" if case == "hook" else "SCRAM-SHA-512")


NULLABLE = [name for name, schema in MAKE["plain_settings"]().items() if {"type": "null"} in schema.get("anyOf", [])]


def test_a_setting_that_is_null_is_left_out(tmp_path: Path) -> None:
    nothing = dict.fromkeys(NULLABLE)
    values = {
        **ALL,
        "settings": nothing,
        "services": {name: {"settings": nothing} for name in SERVICES},
        "codeStore": {},
    }
    manifests = helm.render(values)
    for pod in pods(manifests).values():
        settings = told(pod, manifests, tmp_path)
        assert [name for name in NULLABLE if getattr(settings, name.lower()) is not None] == []


def test_a_service_whose_setting_is_null_has_what_all_have(tmp_path: Path) -> None:
    own = {"run-starter": {"settings": {"SPARK_UI": None, "OPENLINEAGE_TOPIC": "its"}}}
    all_ = {"SPARK_UI": "http://spark:4040", "OPENLINEAGE_TOPIC": None}
    manifests = helm.render({**LEAST, "settings": all_, "services": own})
    settings = told(pods(manifests)["run-starter"], manifests, tmp_path)
    assert (settings.spark_ui, settings.openlineage_topic) == ("http://spark:4040", "its")


def of_starter(tmp_path: Path, starter: dict[str, Any], **values: Any) -> tuple[Settings, str]:
    """The settings of a run-starter, and the limit of the volume that RETROFILL_HOME is."""
    manifests = helm.render({**LEAST, **values, "services": {"run-starter": starter}})
    pod = pods(manifests)["run-starter"]
    (home,) = [volume for volume in pod.spec["volumes"] if volume["name"] == "home"]
    return told(pod, manifests, tmp_path), str(home["emptyDir"]["sizeLimit"])


@pytest.mark.parametrize(
    ("starter", "size"),
    [
        ({}, 2**32),
        ({"scratch": "512Mi"}, 2**29),
        ({"scratch": "1.5Gi"}, 3 * 2**29),
        ({"scratch": "64Ti"}, 2**46),
        ({"scratch": "4G"}, 4 * 10**9),
        ({"scratch": "250000000"}, 250_000_000),
        ({"settings": {"LOG_STORE": None}}, 2**32),
    ],
)
def test_the_logs_of_attempts_fit_where_they_are(starter: dict[str, Any], size: int, tmp_path: Path) -> None:
    """A pod whose volume exceeds its limit is evicted, with its drivers."""
    settings, limit = of_starter(tmp_path, starter)
    assert limit == starter.get("scratch", "4Gi")
    assert settings.log_total_bytes == size // 4


@pytest.mark.parametrize("given", [{"LOG_STORE": "/logs"}, {"LOG_TOTAL_BYTES": 20_000_000_000}])
def test_where_logs_are_or_how_large_may_be_given(given: dict[str, Any], tmp_path: Path) -> None:
    expected = given.get("LOG_TOTAL_BYTES", Settings().log_total_bytes)
    assert of_starter(tmp_path, {"settings": given})[0].log_total_bytes == expected
    assert of_starter(tmp_path, {}, settings=given)[0].log_total_bytes == expected


# upgrades


def job(values: dict[str, Any]) -> tuple[str, str]:
    """The Job's name and spec."""
    ((name, found),) = of_kind(helm.render(values), "Job").items()
    return name, json.dumps(found["spec"], sort_keys=True)


def test_a_job_that_is_there_is_never_told_to_be_another() -> None:
    """Kubernetes rejects changes to a Job's pod template, so a changed Job needs a new name."""
    strimzi = {"strimzi": {"enabled": True, "cluster": "main"}}
    changes: list[dict[str, Any]] = [
        {"cli": {"enabled": True}},
        {"image": {"tag": "0.2.0"}},
        {"settings": {"LEASE_SECONDS": 20}},
        {"partitions": 13},
        {"replicationFactor": 2},
        strimzi,
        {"init": {"postgres": {"servicesKey": ""}}},
        {"init": {"resources": {"limits": {"memory": "1Gi"}}}},
    ]
    before = job(LEAST)
    after = [job({**LEAST, **change}) for change in changes]
    assert all((name == before[0]) is (pod == before[1]) for name, pod in after)
    assert [name for name, _ in after].count(before[0]) == 1
    assert job(HOOK)[0] == f"{FULL}-init"
    assert of_kind(rendered("hook"), "Job")[f"{FULL}-init"]["metadata"]["annotations"] == {
        "helm.sh/hook": "pre-install,pre-upgrade",
        "helm.sh/hook-delete-policy": "before-hook-creation",
    }


def test_a_run_starter_may_take_longer_to_stop_than_it_waits_for_its_drivers() -> None:
    def seconds(**values: Any) -> dict[str, int]:
        deployments = of_kind(helm.render({**LEAST, **values}), "Deployment").items()
        return {
            name.removeprefix(f"{FULL}-"): each["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
            for name, each in deployments
        }

    others = dict.fromkeys(SERVICES, 60)
    assert seconds() == {**others, "run-starter": 600}
    assert seconds(settings={"DRAIN_SECONDS": 90.5}) == {**others, "run-starter": 151}
    own = {"run-starter": {"settings": {"DRAIN_SECONDS": 0}, "terminationGracePeriodSeconds": 20}}
    assert seconds(services=own) == {**others, "run-starter": 20}


def test_a_new_setting_starts_the_pods_anew() -> None:
    def templates(**settings: Any) -> dict[str, Manifest]:
        values = {**LEAST, "cli": {"enabled": True}, "console": ALL["console"], "settings": settings}
        return {name: each["spec"]["template"] for name, each in of_kind(helm.render(values), "Deployment").items()}

    before, after = templates(), templates(LEASE_SECONDS=20)
    assert set(before) == {f"{FULL}-{name}" for name in (*SERVICES, "cli", "console")}
    assert [name for name in before if before[name] == after[name]] == []


# each mistake is refused with one line that names it
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no Kafka": ({"spark": {"remote": "sc://s:1"}}, "kafka.bootstrapServers is needed"),
    "no Spark": ({"kafka": LEAST["kafka"]}, "spark.remote is needed"),
    "not an address": ({**LEAST, "kafka": {"bootstrapServers": "kafka"}}, "/kafka/bootstrapServers"),
    "no such protocol": ({**LEAST, "kafka": {**LEAST["kafka"], "securityProtocol": "TLS"}}, "/kafka/securityProtocol"),
    "no partitions": ({**LEAST, "partitions": 0}, "/partitions"),
    "no such service": ({**LEAST, "services": {"planner": {}}}, "'planner' not allowed"),
    "no such value": ({**LEAST, "replicas": 3}, "'replicas' not allowed"),
    "no replicas": ({**LEAST, "defaults": {"replicas": 0}}, "/defaults/replicas"),
    "scaled to nothing": ({**LEAST, "defaults": {"keda": {"minReplicas": 0}}}, "/defaults/keda/minReplicas"),
    "more replicas than partitions": (
        {**ALL, "partitions": 4, "services": {"run-starter": {"keda": {"minReplicas": 5}}}},
        "services.run-starter.keda.minReplicas is 5, more than the 4 replicas",
    ),
    "no such setting": ({**LEAST, "settings": {"LEASE": 3}}, "'LEASE' not allowed"),
    "a wrong setting": ({**LEAST, "settings": {"LOG_LEVEL": "info"}}, "/settings/LOG_LEVEL"),
    "a secret as a setting": ({**LEAST, "settings": {"WEBHOOK_SECRETS": {}}}, "'WEBHOOK_SECRETS' not allowed"),
    "a secret of one service": (
        {**LEAST, "services": {"run-starter": {"settings": {"KAFKA_PASSWORD": "x"}}}},
        "'KAFKA_PASSWORD' not allowed",
    ),
    "a secret in an address": ({**LEAST, "spark": {"remote": "sc://s:1/;token=x"}}, "/spark/remote"),
    "a test aid": ({**LEAST, "settings": {"CRASH_POINT": "x"}}, "'CRASH_POINT' not allowed"),
    "Strimzi without a cluster": ({**LEAST, "strimzi": {"enabled": True}}, "strimzi.cluster is needed"),
    "a prefix that Strimzi cannot have": (
        {**ALL, "topicPrefix": "Team_A."},
        'topicPrefix is "Team_A.": with Strimzi it begins the names of resources',
    ),
    "a mechanism that Strimzi cannot have": (
        {**ALL, "kafka": {**ALL["kafka"], "saslMechanism": "PLAIN"}},
        "kafka.saslMechanism is PLAIN",
    ),
    "a hook that would wait for ever": ({**ALL, "init": {"hook": True}}, "whom Strimzi makes after it"),
    "a console for everybody": ({**LEAST, "console": {"enabled": True}}, "console.enabled needs a login"),
    "a header from anybody": (
        {**LEAST, "console": {"enabled": True, "userHeader": "X-User"}},
        "console.userHeader without console.proxies",
    ),
    "a proxy by name": ({**LEAST, "console": {"proxies": ["ingress"]}}, "/console/proxies/0"),
    "a role that is none": ({**LEAST, "console": {"roles": {"ada": "owner"}}}, "/console/roles/ada"),
    "tokens as a setting": (
        {**LEAST, "settings": {"CONSOLE_TOKENS": "/tmp/tokens"}},
        "'CONSOLE_TOKENS' not allowed",
    ),
    "executors without an image": (
        {**LEAST, "spark": {"kubernetes": {"enabled": True}}},
        "spark.kubernetes.executorImage is needed",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_values_are_refused_in_one_line(what: str) -> None:
    values, said = WRONG[what]
    assert said in helm.refusal(values)
