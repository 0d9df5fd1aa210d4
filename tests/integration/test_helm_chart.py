"""The Helm chart rendered by the real helm, checked against the Kubernetes schemas and the code's
own tables.
"""

from __future__ import annotations

import json
import runpy
import tomllib
from functools import cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.support import helm
from tests.support.manifests import (
    COMPONENT,
    Manifest,
    Pod,
    environment,
    of_kind,
    pods,
    selects,
    strings,
)

from retrofill.admin import access
from retrofill.admin.topics import wanted_topics
from retrofill.contract.topics import DRIVER, OPERATOR, SERVICES
from retrofill.settings import Settings

# Where helm is missing it is built, which takes minutes, so these tests are in the long tier.
pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
MAKE = runpy.run_path(str(ROOT / "deploy" / "helm" / "make.py"))
# The oldest and newest Kubernetes versions that the chart supports. Image volumes, which one case
# uses, are newer than the oldest.
VERSIONS = ("1.27", "1.37")
LEAST: dict[str, Any] = {
    "kafka": {"bootstrapServers": "kafka-0:9093,kafka-1:9093,kafka-2:9094"},
    "spark": {"remote": "sc://spark:15002"},
}
OFF: dict[str, Any] = {
    "kafka": {"bootstrapServers": "kafka:9092", "securityProtocol": "PLAINTEXT"},
    "spark": {"remote": "sc://spark:15002/;use_ssl=true"},
    "partitions": 4,
    "topicPrefix": "",
    "replicationFactor": 1,
    "defaults": {"disruptionBudget": {"enabled": False}},
    "init": {"enabled": False},
    "networkPolicy": {"enabled": False},
}
CODE_IMAGE = {"pipelines": {"image": "acme/pipelines:7"}}
ALL: dict[str, Any] = {
    "image": {"registry": "registry.example/acme", "tag": "1.2.3", "pullSecrets": ["registry"]},
    "kafka": {"bootstrapServers": "kafka-0:9093,kafka-1:9094", "ca": {"secret": "cluster-ca"}},
    "spark": {
        "remote": "sc://spark:15002",
        "kubernetes": {"enabled": True, "executorImage": "acme/spark:4", "conf": {"spark.executor.instances": 2}},
    },
    "settings": {
        "MAX_CONF_BYTES": 2_000_000,
        "LEASE_SECONDS": 7.5,
        "CALLBACKS": {"page": "flights.callbacks:page"},
        "CALLBACK_TOPICS": ["theirs"],
        "OPENLINEAGE_TOPIC": "lineage",
    },
    "pipelines": {"claim": "pipelines"},
    "codeStore": {"claim": "code"},
    "services": {
        "run-starter": {"replicas": 3, "volumes": [{"name": "data", "emptyDir": {}}], "keda": {"maxReplicas": 6}},
        "callback-runner": {
            "settings": {"CALLBACK_SLOTS": 3},
            "secretSettings": {"WEBHOOK_SECRETS": {"secret": "hooks", "key": "all"}},
            "keda": {"minReplicas": 2, "maxReplicas": 99},
        },
    },
    "cli": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "keda": {"enabled": True},
    "strimzi": {"enabled": True, "cluster": "main", "quotas": {"requester": {"producerByteRate": 1_048_576}}},
    "networkPolicy": {"egress": {"run-starter": [{"ports": [{"port": 4318}]}]}},
}
HOOK: dict[str, Any] = {**LEAST, **CODE_IMAGE, "init": {"hook": True, "kafka": {"saslMechanism": "PLAIN"}}}
CASES = {"least": LEAST, "off": OFF, "all": ALL, "hook": HOOK}
# API groups of operators, whose kinds are not in Kubernetes' own schemas.
FOREIGN = {"keda.sh", "kafka.strimzi.io", "monitoring.coreos.com"}
FULL = helm.RELEASE + "-retrofill"
OWN = {service: f"retrofill.{service}" for service in (*SERVICES, DRIVER, OPERATOR, "init")}


@cache
def rendered(case: str) -> list[Manifest]:
    return helm.render(CASES[case])


def settings_of(case: str, **more: Any) -> Settings:
    """The settings that a case's values should produce."""
    values = CASES[case]
    return Settings(
        topic_prefix=values.get("topicPrefix", "retrofill."),
        partitions=values.get("partitions", 12),
        replication_factor=values.get("replicationFactor", 3),
        **more,
    )


every_case = pytest.mark.parametrize("case", CASES)


def every_pod(case: str) -> list[Pod]:
    return list(pods(rendered(case)).values())


# the files


def test_what_is_made_from_the_code_is_as_the_code_makes_it() -> None:
    for path, text in MAKE["files"]().items():
        assert path.read_text() == text, f"run deploy/helm/make.py: {path.name} is not current"


def test_the_charts_version_is_the_projects() -> None:
    chart = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)


@every_case
def test_it_has_no_lint(case: str) -> None:
    done = helm.run("lint", CASES[case], "--strict")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("case", "version"), [(case, version) for case in CASES for version in VERSIONS[case == "hook" :]]
)
def test_kubernetes_would_take_it(case: str, version: str) -> None:
    checked = 0
    for manifest in rendered(case):
        if manifest["apiVersion"].split("/")[0] not in FOREIGN:
            kubernetes_validate.validate(manifest, version, strict=True)
            checked += 1
    assert checked >= 4 * len(SERVICES) - 4 * (case == "off")


@every_case
def test_optional_parts_are_there_only_where_they_are_wanted(case: str) -> None:
    found = {manifest["apiVersion"].split("/")[0] for manifest in rendered(case)} & FOREIGN
    assert found == (FOREIGN if case == "all" else set())
    assert ("init" in pods(rendered(case))) is (case != "off")
    assert ("cli" in pods(rendered(case))) is (case == "all")
    assert bool(of_kind(rendered(case), "NetworkPolicy")) is (case != "off")


@every_case
def test_names_are_unique(case: str) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in rendered(case)]
    assert len(names) == len(set(names))


# workloads


@every_case
def test_every_container_is_locked(case: str) -> None:
    for pod in every_pod(case):
        assert pod.spec["securityContext"]["runAsNonRoot"] is True
        assert pod.spec["securityContext"]["runAsUser"] == 10001  # as in the Dockerfile
        assert pod.spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod.spec)
        for container in pod.containers:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"requests", "limits"} <= set(container["resources"])


@every_case
def test_it_can_write_where_it_has_to_and_nowhere_else(case: str) -> None:
    for pod in every_pod(case):
        (container,) = pod.containers
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        assert len(volumes) == len(pod.spec["volumes"])
        writable = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
        store = {"/code"} if pod.component == "cli" and case == "all" else set()
        assert writable == {"/tmp", "/var/lib/retrofill"} | store
        assert {m["name"] for m in container["volumeMounts"]} <= set(volumes)


@every_case
def test_every_image_is_a_target_of_the_dockerfile(case: str) -> None:
    targets = {
        line.rsplit(" ", 1)[1]
        for line in (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
        if line.startswith("FROM ")
    }
    start = "registry.example/acme/retrofill/" if case == "all" else "retrofill/"
    tag = "1.2.3" if case == "all" else "0.1.0"
    for pod in every_pod(case):
        name, found = pod.containers[0]["image"].removeprefix(start).split(":")
        assert (name in targets, found) == (True, tag)
        assert name == ("cli" if pod.component in ("init", "cli") else pod.component)


@every_case
def test_each_service_is_probed_where_it_answers(case: str) -> None:
    for name in SERVICES:
        (container,) = pods(rendered(case))[name].containers
        variables = {one["name"]: one.get("value") for one in container["env"]}
        (port,) = container["ports"]
        assert variables["RETROFILL_HTTP_HOST"] == "0.0.0.0"
        assert variables["RETROFILL_HTTP_PORT"] == str(port["containerPort"])
        probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
        assert {probe["port"] for probe in probes.values()} == {port["name"]}
        assert {kind: probe["path"] for kind, probe in probes.items()} == {
            "startup": "/healthz",
            "liveness": "/healthz",
            "readiness": "/readyz",
        }


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
    "run-starter": {
        ("retrofill-postgres", "run-starter"),
        (OWN["run-starter"], "password"),
        (OWN[DRIVER], "password"),
    },
    "deadline-watcher": {("retrofill-postgres", "deadline-watcher"), (OWN["deadline-watcher"], "password")},
    "callback-runner": {("retrofill-postgres", "callback-runner"), (OWN["callback-runner"], "password")},
    "init": {
        ("retrofill-init", "postgres-dsn"),
        ("retrofill-init", "postgres-service-dsns"),
        ("retrofill-init", "kafka-passwords"),
        (OWN["init"], "password"),
    },
    "cli": {("retrofill-postgres", "reader"), (OWN[OPERATOR], "password")},
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
        if case == "all" and pod.component == "callback-runner":
            expected |= {("hooks", "all")}
        assert pod.secrets == expected


@every_case
def test_no_manifest_has_a_secret_in_it(case: str) -> None:
    assert not of_kind(rendered(case), "Secret")
    secret = {f"RETROFILL_{name.upper()}" for name in Settings.model_fields if MAKE["is_secret"](name)}
    for each in of_kind(rendered(case), "ConfigMap").values():
        assert not secret & set(each["data"])
    for pod in every_pod(case):
        for one in pod.containers[0]["env"]:
            if one["name"] in secret:
                # The kubelet builds this value from a variable that comes from a Secret.
                assert one["value"] == '{"driver": "$(DRIVER_KAFKA_PASSWORD)"}'
    # A Postgres URL would contain a password.
    assert not [text for each in rendered(case) for text in strings(each) if "://" in text and "@" in text]


@every_case
def test_what_a_pod_is_told_are_settings_as_they_are_meant(case: str, tmp_path: Path, monkeypatch: Any) -> None:
    """The services' own ``Settings`` parse the environment that a kubelet would set."""
    for pod in every_pod(case):
        secrets = {place: f"value-of-{place[0]}-{place[1]}" for place in pod.secrets}
        dsns = {name: f"dsn-of-{name}" for name in SERVICES}
        secrets |= {
            ("retrofill-init", "postgres-service-dsns"): json.dumps(dsns),
            ("retrofill-init", "kafka-passwords"): '{"driver": "x"}',
            ("hooks", "all"): '{"pager": ["whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"]}',
        }
        with monkeypatch.context() as patch:
            for name, value in environment(pod, rendered(case), secrets, tmp_path / pod.component).items():
                patch.setenv(name, value)
            settings = Settings()
        assert settings.topic_prefix == CASES[case].get("topicPrefix", "retrofill.")
        assert settings.partitions == CASES[case].get("partitions", 12)
        who = OPERATOR if pod.component == "cli" else pod.component
        own = settings.acting_as(who)
        if case != "off":
            assert own.kafka_username == OWN[who]
            assert own.kafka_password is not None
            assert own.kafka_password.get_secret_value() == f"value-of-{OWN[who]}-password"
        if pod.component == "run-starter":
            assert settings.spark_remote == CASES[case]["spark"]["remote"]
        if pod.component == "run-starter" and case != "off":
            driver = settings.acting_as(DRIVER)
            assert driver.kafka_password is not None
            assert driver.kafka_password.get_secret_value() == f"value-of-{OWN[DRIVER]}-password"
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


# selectors


@every_case
def test_selectors_match_just_the_pods_that_are_meant(case: str) -> None:
    labels = {component: pod.labels for component, pod in pods(rendered(case)).items()}

    def selected(selector: dict[str, Any]) -> set[str]:
        return {component for component, own in labels.items() if selects(selector, own)}

    for kind in ("Deployment", "PodDisruptionBudget"):
        for each in of_kind(rendered(case), kind).values():
            assert selected(each["spec"]["selector"]) == {each["metadata"]["labels"][COMPONENT]}
    for each in of_kind(rendered(case), "Service").values():
        assert selected({"matchLabels": each["spec"]["selector"]}) == {each["metadata"]["labels"][COMPONENT]}
    for name in SERVICES:
        (spread,) = pods(rendered(case))[name].spec["topologySpreadConstraints"]
        assert selected(spread["labelSelector"]) == {name}
    budgets = of_kind(rendered(case), "PodDisruptionBudget")
    assert set(budgets) == (set() if case == "off" else {f"{FULL}-{name}" for name in SERVICES})
    assert {f"{FULL}-{name}" for name in SERVICES} <= set(of_kind(rendered(case), "Deployment"))


# Allowed egress ports besides DNS (53) and Postgres: Kafka, Spark, webhooks, and those that a case
# adds.
MAY_CALL = {
    "least": {"run-starter": {15002}, "callback-runner": {443}, "": {9093, 9094}},
    "hook": {"run-starter": {15002}, "callback-runner": {443}, "": {9093, 9094}},
    "all": {"run-starter": {15002, 443, 4318, "executors"}, "callback-runner": {443}, "": {9093, 9094}},
}


@pytest.mark.parametrize("case", MAY_CALL)
def test_a_pod_may_call_only_what_it_needs(case: str) -> None:
    policies = of_kind(rendered(case), "NetworkPolicy").values()
    for component, pod in pods(rendered(case)).items():
        own = [each["spec"] for each in policies if selects(each["spec"]["podSelector"], pod.labels)]
        assert any(set(spec["policyTypes"]) == {"Ingress", "Egress"} for spec in own)
        ports: set[Any] = set()
        for spec in own:
            for rule in spec.get("egress", []):
                assert rule, "a rule without anything allows all"
                ports |= {port["port"] for port in rule["ports"]} if "ports" in rule else {"executors"}
        assert ports == {53, 5432} | MAY_CALL[case][""] | MAY_CALL[case].get(component, set())
        called = [rule for spec in own for rule in spec.get("ingress", [])]
        assert len(called) == (component in SERVICES) + (component == "run-starter" and case == "all")


def test_webhooks_reach_public_addresses_only() -> None:
    rule = of_kind(rendered("least"), "NetworkPolicy")[f"{FULL}-webhooks"]["spec"]["egress"][0]
    (block,) = [peer["ipBlock"] for peer in rule["to"]]
    outside = [ip_network(each) for each in block["except"]]
    for address in ("10.1.2.3", "172.20.0.1", "192.168.1.1", "127.0.0.1", "169.254.169.254", "100.64.0.1"):
        assert any(ip_address(address) in network for network in outside), address


@every_case
def test_only_who_makes_pods_may_talk_to_kubernetes(case: str) -> None:
    makes_pods = case == "all"
    for pod in every_pod(case):
        assert pod.spec["automountServiceAccountToken"] is (makes_pods and pod.component == "run-starter")
    for name, account in of_kind(rendered(case), "ServiceAccount").items():
        assert account["automountServiceAccountToken"] is (makes_pods and name == f"{FULL}-run-starter")
    assert set(of_kind(rendered(case), "Role")) == ({f"{FULL}-run-starter"} if makes_pods else set())
    assert not of_kind(rendered(case), "ClusterRole")
    for binding in of_kind(rendered(case), "RoleBinding").values():
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": f"{FULL}-run-starter", "namespace": helm.NAMESPACE}
        ]


# custom resources


# Kinds whose schemas no package provides: the API version and the allowed fields of ``spec``.
KINDS = {
    "KafkaTopic": ("kafka.strimzi.io/v1", {"partitions", "replicas", "config"}),
    "KafkaUser": ("kafka.strimzi.io/v1", {"authentication", "authorization", "quotas"}),
    "ScaledObject": (
        "keda.sh/v1alpha1",
        {
            "scaleTargetRef",
            "minReplicaCount",
            "maxReplicaCount",
            "pollingInterval",
            "fallback",
            "advanced",
            "triggers",
        },
    ),
    "TriggerAuthentication": ("keda.sh/v1alpha1", {"secretTargetRef", "configMapTargetRef"}),
    "ServiceMonitor": ("monitoring.coreos.com/v1", {"jobLabel", "selector", "endpoints"}),
}


def test_foreign_kinds_are_as_their_operators_know_them() -> None:
    foreign = [each for each in rendered("all") if each["apiVersion"].split("/")[0] in FOREIGN]
    assert {each["kind"] for each in foreign} == set(KINDS)
    for each in foreign:
        version, fields = KINDS[each["kind"]]
        assert each["apiVersion"] == version
        assert set(each["spec"]) <= fields
        if version.startswith("kafka"):
            assert each["metadata"]["labels"]["strimzi.io/cluster"] == "main"


def test_each_service_scales_by_the_lag_of_what_it_reads_up_to_the_partitions() -> None:
    scaled = of_kind(rendered("all"), "ScaledObject")
    logins = of_kind(rendered("all"), "TriggerAuthentication")
    maps = of_kind(rendered("all"), "ConfigMap")
    assert set(scaled) == set(logins) == {f"{FULL}-{name}" for name in SERVICES}
    for service in SERVICES.values():
        name = f"{FULL}-{service.name}"
        spec = scaled[name]["spec"]
        assert spec["scaleTargetRef"] == {"name": name}
        deployment = of_kind(rendered("all"), "Deployment")[name]
        assert "replicas" not in deployment["spec"]
        assert spec["minReplicaCount"] == (2 if service.name == "callback-runner" else 1)
        assert spec["maxReplicaCount"] == (6 if service.name == "run-starter" else 12)
        triggers = spec["triggers"]
        assert {t["metadata"]["topic"] for t in triggers} == {f"retrofill.{topic}" for topic in service.reads}
        for trigger in triggers:
            assert trigger["type"] == "kafka"
            assert trigger["metadata"]["consumerGroup"] == service.group("retrofill.")
            assert trigger["metadata"]["bootstrapServers"] == ALL["kafka"]["bootstrapServers"]
            assert (trigger["metadata"]["sasl"], trigger["metadata"]["tls"]) == ("scram_sha512", "enable")
            assert all(isinstance(value, str) for value in trigger["metadata"].values())
            assert trigger["authenticationRef"] == {"name": name}
        # KEDA logs in as the service itself, with Secrets that the service's pods also have.
        given = logins[name]["spec"]["secretTargetRef"]
        assert {each["parameter"] for each in given} == {"password", "ca"}
        assert {(each["name"], each["key"]) for each in given} <= pods(rendered("all"))[service.name].secrets
        (user,) = logins[name]["spec"]["configMapTargetRef"]
        assert maps[user["name"]]["data"][user["key"]] == OWN[service.name]


@pytest.mark.parametrize(("prefix", "factor"), [("retrofill.", 3), ("team-a.", 1)])
def test_strimzi_makes_the_topics_that_init_would(prefix: str, factor: int) -> None:
    values = {**ALL, "topicPrefix": prefix, "replicationFactor": factor, "partitions": 7}
    found = {
        name: (topic["spec"]["partitions"], topic["spec"]["replicas"], topic["spec"]["config"])
        for name, topic in of_kind(helm.render(values), "KafkaTopic").items()
    }
    settings = Settings(topic_prefix=prefix, replication_factor=factor, partitions=7)
    assert found == {
        topic.topic: (topic.num_partitions, topic.replication_factor, topic.config) for topic in wanted_topics(settings)
    }


def test_uninstalling_keeps_the_topics() -> None:
    for topic in of_kind(rendered("all"), "KafkaTopic").values():
        assert topic["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def rights_of(user: Manifest) -> set[tuple[str, str, str, str]]:
    """Each rule's resource type, name, pattern type and operation."""
    assert user["spec"]["authorization"]["type"] == "simple"
    return {
        (rule["resource"]["type"], rule["resource"]["name"], rule["resource"]["patternType"], operation)
        for rule in user["spec"]["authorization"]["acls"]
        for operation in rule["operations"]
    }


STRIMZI = {"TRANSACTIONAL_ID": "transactionalId", "PREFIXED": "prefix"}


def test_strimzi_gives_each_user_the_rights_that_init_would() -> None:
    users = of_kind(rendered("all"), "KafkaUser")
    settings = settings_of("all", callback_topics=["theirs"], openlineage_topic="lineage")
    rows = access.table(settings)
    assert set(users) == {settings.kafka_user(who) for who in (*rows, "init")}
    for who, row in rows.items():
        user = settings.kafka_user(who)
        assert rights_of(users[user]) == {
            (
                STRIMZI.get(acl.restype.name, acl.restype.name.lower()),
                acl.name,
                STRIMZI.get(acl.resource_pattern_type.name, acl.resource_pattern_type.name.lower()),
                acl.operation.name.capitalize(),
            )
            for acl in access.acls(row, user)
        }
    assert rights_of(users["retrofill.admin.init"]) == {
        ("topic", "retrofill.", "prefix", "Create"),
        ("topic", "retrofill.", "prefix", "Describe"),
    }
    assert all(user["spec"]["authentication"] == {"type": "scram-sha-512"} for user in users.values())
    assert {name: user["spec"]["quotas"] for name, user in users.items() if "quotas" in user["spec"]} == {
        "retrofill.requester": {"producerByteRate": 1_048_576}
    }


def test_prometheus_finds_every_service() -> None:
    monitor = of_kind(rendered("all"), "ServiceMonitor")[FULL]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    services = of_kind(rendered("all"), "Service").values()
    (endpoint,) = monitor["spec"]["endpoints"]
    found = {
        each["metadata"]["labels"][COMPONENT]
        for each in services
        if selects(monitor["spec"]["selector"], each["metadata"]["labels"])
        and endpoint["port"] in {port["name"] for port in each["spec"]["ports"]}
    }
    assert found == set(SERVICES)
    assert endpoint["path"] == "/metrics"


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


def test_a_new_setting_starts_the_pods_anew() -> None:
    def pod_annotations(values: dict[str, Any]) -> list[dict[str, str]]:
        deployments = of_kind(helm.render(values), "Deployment").values()
        return [each["spec"]["template"]["metadata"]["annotations"] for each in deployments]

    before, after = pod_annotations(LEAST), pod_annotations({**LEAST, "settings": {"LEASE_SECONDS": 20}})
    assert all(old != new for old, new in zip(before, after, strict=True))


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
    "executors without an image": (
        {**LEAST, "spark": {"kubernetes": {"enabled": True}}},
        "spark.kubernetes.executorImage is needed",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_values_are_refused_in_one_line(what: str) -> None:
    values, said = WRONG[what]
    assert said in helm.refusal(values)


def test_the_code_store_is_written_by_the_command_line_and_read_by_the_drivers():
    rights = {}
    for pod in every_pod("all"):
        for container in pod.containers:
            stores = [mount for mount in container["volumeMounts"] if mount["name"] == "code-store"]
            named = [one["value"] for one in container.get("env", []) if one["name"] == "RETROFILL_CODE_STORE"]
            assert [mount["mountPath"] for mount in stores] == named
            if stores:
                rights[pod.component] = "reads" if stores[0].get("readOnly") else "writes"
    assert rights == {"run-starter": "reads", "cli": "writes"}
