"""The Helm chart rendered by the real helm, checked against the Kubernetes schemas: its files,
workloads, selectors and allowed connections.
"""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

import kubernetes_validate
import pytest
from tests.support import helm
from tests.support.helm_cases import CASES, FOREIGN, FULL, ROOT, every_case, every_pod, rendered
from tests.support.manifests import COMPONENT, Manifest, of_kind, pods, selects

from retrofill_core.contract.topics import SERVICES

# Where helm is missing it is built, which takes minutes, so these tests are in the long tier.
pytestmark = pytest.mark.long
# The oldest and newest Kubernetes versions that the chart supports. Image volumes, which one case
# uses, are newer than the oldest.
VERSIONS = ("1.27", "1.37")


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
    assert ("console" in pods(rendered(case))) is (case in ("all", "off"))
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


@pytest.mark.parametrize("case", ["off", "all"])
def test_the_console_is_probed_where_it_listens(case: str) -> None:
    (container,) = pods(rendered(case))["console"].containers
    variables = {one["name"]: one["value"] for one in container["env"]}
    (port,) = container["ports"]
    assert (variables["RETROFILL_CONSOLE_HOST"], variables["RETROFILL_CONSOLE_PORT"]) == (
        "0.0.0.0",
        str(port["containerPort"]),
    )
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert probes == [{"path": "/healthz", "port": port["name"]}] * 3
    (opened,) = of_kind(rendered(case), "Service")[f"{FULL}-console"]["spec"]["ports"]
    assert (opened["port"], opened["targetPort"]) == (80, port["name"])


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


# Allowed egress ports besides DNS (53) and Postgres: Kafka, Spark, webhooks, the run-starters' for logs,
# and those that a case adds.
MAY_CALL: dict[str, dict[str, set[int | str]]] = {
    "least": {"run-starter": {15002}, "callback-runner": {443}, "": {9093, 9094}},
    "hook": {"run-starter": {15002}, "callback-runner": {443}, "": {9093, 9094}},
    "all": {
        "run-starter": {15002, 443, 4318, "executors"},
        "callback-runner": {443},
        "cli": {9464},
        "console": {9464},
        "": {9093, 9094},
    },
}


@pytest.mark.parametrize("case", MAY_CALL)
def test_a_pod_may_call_only_what_it_needs(case: str) -> None:
    policies = of_kind(rendered(case), "NetworkPolicy").values()
    for component, pod in pods(rendered(case)).items():
        own: list[Manifest] = [each["spec"] for each in policies if selects(each["spec"]["podSelector"], pod.labels)]
        assert any(set(spec["policyTypes"]) == {"Ingress", "Egress"} for spec in own)
        ports: set[Any] = set()
        for spec in own:
            for rule in spec.get("egress", []):
                assert rule, "a rule without anything allows all"
                ports |= {port["port"] for port in rule["ports"]} if "ports" in rule else {"executors"}
        assert ports == {53, 5432} | MAY_CALL[case][""] | MAY_CALL[case].get(component, set())
        called = [port["port"] for spec in own for rule in spec.get("ingress", []) for port in rule["ports"]]
        assert called[:1] == ["web"] * (component == "console") + ["http"] * (component in SERVICES)
        starter = component == "run-starter"
        assert called[1:] == ["http"] * starter + [7078, 7178] * (starter and case == "all")


def test_the_command_line_and_the_console_read_logs_though_metrics_are_for_one_alone() -> None:
    closed = {**CASES["all"], "networkPolicy": {"metrics": {"from": [{"podSelector": {"matchLabels": {"app": "x"}}}]}}}
    found = helm.render(closed)
    labels = {component: pod.labels for component, pod in pods(found).items()}
    policies = [each["spec"] for each in of_kind(found, "NetworkPolicy").values()]

    def peers(direction: str, side: str, component: str, port: Any) -> list[dict[str, Any]]:
        own = [spec for spec in policies if selects(spec["podSelector"], labels[component])]
        rules = [rule for spec in own for rule in spec.get(direction, []) if {"port": port} in rule.get("ports", [])]
        return [peer["podSelector"] for rule in rules for peer in rule[side]]

    may_call = {
        each
        for each in labels
        if any(selects(s, labels[each]) for s in peers("ingress", "from", "run-starter", "http"))
    }
    assert may_call == {"cli", "console"}
    for component in may_call:
        reached = {
            each for each in labels if any(selects(s, labels[each]) for s in peers("egress", "to", component, 9464))
        }
        assert reached == {"run-starter"}


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
