"""The Helm chart's custom resources: KEDA, Strimzi and Prometheus are told what the code's own tables say."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

import pytest
from tests.support import helm
from tests.support.helm_cases import ALL, FOREIGN, FULL, LEAST, OWN, rendered, settings_of
from tests.support.manifests import COMPONENT, Manifest, of_kind, pods, selects

from retrofill_core.contract.topics import SERVICES
from retrofill_core.settings import Settings
from retrofill_tools.admin import access
from retrofill_tools.admin.topics import wanted_topics

# Where helm is missing it is built, which takes minutes, so these tests are in the long tier.
pytestmark = pytest.mark.long


SEATS = helm.CHART / "files" / "seats.sql"
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
    assert set(scaled) == {f"{FULL}-{name}" for name in SERVICES} == set(logins) - {f"{FULL}-seats"}
    for service in SERVICES.values():
        name = f"{FULL}-{service.name}"
        spec = scaled[name]["spec"]
        assert spec["scaleTargetRef"] == {"name": name}
        deployment = of_kind(rendered("all"), "Deployment")[name]
        assert "replicas" not in deployment["spec"]
        assert spec["minReplicaCount"] == (2 if service.name == "callback-runner" else 1)
        assert spec["maxReplicaCount"] == (6 if service.name == "run-starter" else 12)
        triggers = [each for each in spec["triggers"] if each["type"] == "kafka"]
        assert len(spec["triggers"]) - len(triggers) == (service.name == "run-starter")
        assert {t["metadata"]["topic"] for t in triggers} == {f"retrofill.{topic}" for topic in service.reads}
        for trigger in triggers:
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


def seat_triggers(**more: Any) -> dict[str, tuple[str, str]]:
    """Of the run-starter's triggers by seats: what each counts, and how many seats a replica has, by name."""
    scaled = of_kind(helm.render({**ALL, **more}), "ScaledObject")[f"{FULL}-run-starter"]["spec"]
    found = {}
    for each in scaled["triggers"]:
        if each["type"] == "postgresql":
            assert each["authenticationRef"] == {"name": f"{FULL}-seats"}
            query, _, condition = each["metadata"]["query"].strip().rpartition("\nWHERE ")
            assert query == SEATS.read_text().strip()
            found[each["name"]] = condition, each["metadata"]["targetQueryValue"]
    return found


def keda(**seats: Any) -> dict[str, Any]:
    return {"keda": {"enabled": True, "seats": seats}}


def test_run_starters_scale_by_the_seats_that_are_wanted_in_their_pools() -> None:
    slots = str(Settings().driver_slots)
    assert seat_triggers() == {"seats": ("true", slots)}
    assert seat_triggers(settings={"DRIVER_SLOTS": 6}) == {"seats": ("true", "6")}
    own = {"services": {"run-starter": {"settings": {"SERVES": ["gpu", "yarn"], "DRIVER_SLOTS": 3}}}}
    assert seat_triggers(**own, settings={"DRIVER_SLOTS": 6}) == {"seats": ("pool IN ('gpu', 'yarn')", "3")}
    assert seat_triggers(**keda(slots={"gpu": 4})) == {
        "seats-gpu": ("pool = 'gpu'", "4"),
        "seats": ("pool NOT IN ('gpu')", slots),
    }
    assert seat_triggers(**own, **keda(slots={"gpu": 4, "other": 9})) == {
        "seats-gpu": ("pool = 'gpu'", "4"),
        "seats": ("pool IN ('yarn')", "3"),
    }
    assert seat_triggers(**keda(enabled=False)) == {}


def test_who_counts_the_seats_is_the_reader() -> None:
    given = of_kind(rendered("all"), "TriggerAuthentication")[f"{FULL}-seats"]["spec"]["secretTargetRef"]
    assert given == [{"parameter": "connection", "name": "retrofill-postgres", "key": "reader"}]


def test_only_run_starters_may_be_more_than_the_partitions() -> None:
    many = {"defaults": {"keda": {"maxReplicas": 40}}}
    scaled = of_kind(helm.render({**ALL, "services": {}, **many}), "ScaledObject")
    most = {name.removeprefix(f"{FULL}-"): each["spec"]["maxReplicaCount"] for name, each in scaled.items()}
    assert most == {**dict.fromkeys(SERVICES, 12), "run-starter": 40}


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


def strimzi(value: object) -> str:
    """Strimzi's word for a member of one of the Kafka client's enumerations."""
    assert isinstance(value, Enum)
    return STRIMZI.get(value.name, value.name.lower())


def test_strimzi_gives_each_user_the_rights_that_init_would() -> None:
    users = of_kind(rendered("all"), "KafkaUser")
    settings = settings_of("all", callback_topics=["theirs"], openlineage_topic="lineage")
    rows = access.table(settings)
    assert set(users) == {settings.kafka_user(who) for who in (*rows, "init")}
    for who, row in rows.items():
        user = settings.kafka_user(who)
        assert rights_of(users[user]) == {
            (strimzi(acl.restype), acl.name, strimzi(acl.resource_pattern_type), strimzi(acl.operation).capitalize())
            for acl in access.acls(row, user)
        }
    assert rights_of(users[settings.kafka_user("init")]) == {
        ("topic", "retrofill.", "prefix", "Create"),
        ("topic", "retrofill.", "prefix", "Describe"),
    }
    assert all(user["spec"]["authentication"] == {"type": "scram-sha-512"} for user in users.values())
    assert {name: user["spec"]["quotas"] for name, user in users.items() if "quotas" in user["spec"]} == {
        "retrofill.requester": {"producerByteRate": 1_048_576}
    }


OWN_TOPICS = {
    "callback-runner": {"settings": {"CALLBACK_TOPICS": ["its"]}},
    "run-starter": {"settings": {"OPENLINEAGE_TOPIC": "its-lineage"}},
}


@pytest.mark.parametrize("for_all", [{}, {"CALLBACK_TOPICS": ["theirs"], "OPENLINEAGE_TOPIC": "lineage"}])
def test_a_service_may_write_the_topics_of_its_own_settings(for_all: dict[str, Any]) -> None:
    expected = {"callback-runner": {"its"}, "run-starter": {"its-lineage"}}
    own = {"settings": for_all, "services": OWN_TOPICS}
    users = of_kind(helm.render({**ALL, **own}), "KafkaUser")
    assert {who: foreign(rights_of(users[OWN[who]])) for who in OWN_TOPICS} == expected
    init = pods(helm.render({**LEAST, **own}))["init"]
    told = {each["name"]: each.get("value") for each in init.containers[0]["env"]}
    assert json.loads(told["RETROFILL_CALLBACK_TOPICS"]) == ["its"]
    assert told["RETROFILL_OPENLINEAGE_TOPIC"] == "its-lineage"


def foreign(rights: set[tuple[str, str, str, str]]) -> set[str]:
    """Topics without the prefix that may be written."""
    return {
        name for kind, name, _, may in rights if (kind, may) == ("topic", "Write") and not name.startswith("retrofill.")
    }


def test_a_service_whose_own_topics_are_none_may_write_none_of_those_for_all() -> None:
    none: dict[str, Any] = {"callback-runner": {"settings": {"CALLBACK_TOPICS": []}}}
    values = {"settings": {"CALLBACK_TOPICS": ["theirs"]}, "services": none}
    user = of_kind(helm.render({**ALL, **values}), "KafkaUser")[OWN["callback-runner"]]
    assert foreign(rights_of(user)) == set()


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
