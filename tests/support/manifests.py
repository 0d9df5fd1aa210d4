"""Rendered manifests, as the Kubernetes components that act on them would interpret them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Manifest = dict[str, Any]
COMPONENT = "app.kubernetes.io/component"


@dataclass(frozen=True)
class Pod:
    """The pods of one workload."""

    workload: Manifest
    spec: dict[str, Any]
    labels: dict[str, str]

    @property
    def component(self) -> str:
        """The component of the release."""
        return self.labels[COMPONENT]

    @property
    def containers(self) -> list[dict[str, Any]]:
        """All containers, including init containers."""
        return [*self.spec["containers"], *self.spec.get("initContainers", [])]

    @property
    def secrets(self) -> set[tuple[str, str]]:
        """The Secrets (name and key) that the pod gets, as variables or files."""
        return set(self.secret_files()) | {
            (one["valueFrom"]["secretKeyRef"]["name"], one["valueFrom"]["secretKeyRef"]["key"])
            for container in self.containers
            for one in container.get("env", [])
            if "secretKeyRef" in one.get("valueFrom", {})
        }

    def secret_files(self) -> dict[tuple[str, str], str]:
        """The file path of each Secret (name and key) that is mounted."""
        return {
            (source["secret"]["name"], item["key"]): f"{mount['mountPath']}/{item['path']}"
            for volume in self.spec.get("volumes", [])
            for source in volume.get("projected", {}).get("sources", [])
            if "secret" in source
            for item in source["secret"]["items"]
            for mount in self.containers[0]["volumeMounts"]
            if mount["name"] == volume["name"]
        }


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    """The manifests of a kind, by name."""
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] == kind}


def pods(manifests: list[Manifest]) -> dict[str, Pod]:
    """The pods, by component."""
    found = (
        Pod(each, each["spec"]["template"]["spec"], each["spec"]["template"]["metadata"]["labels"])
        for each in manifests
        if each["kind"] in ("Deployment", "Job")
    )
    return {pod.component: pod for pod in found}


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether the label selector matches. Supports only the forms that the chart uses."""
    assert set(selector) <= {"matchLabels", "matchExpressions"}
    for each in selector.get("matchExpressions", []):
        assert each["operator"] in ("In", "NotIn")
        if (labels.get(each["key"]) in each["values"]) is (each["operator"] == "NotIn"):
            return False
    wanted: dict[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items()


def environment(pod: Pod, manifests: list[Manifest], secrets: dict[tuple[str, str], str], root: Path) -> dict[str, str]:
    """The container's variables as a kubelet would set them. Secret files are written under
    ``root``.
    """
    maps = of_kind(manifests, "ConfigMap")
    (container,) = pod.containers
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= maps[source["configMapRef"]["name"]]["data"]
    for one in container.get("env", []):
        found[one["name"]] = _expanded(one["value"], found) if "value" in one else _looked_up(one["valueFrom"], secrets)
    for place, path in pod.secret_files().items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(secrets[place])
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    return {name: _moved(value, mounts, root) for name, value in found.items()}


def _expanded(value: str, known: dict[str, str]) -> str:
    for name, text in known.items():
        value = value.replace(f"$({name})", text)
    return value


def _looked_up(source: dict[str, Any], secrets: dict[tuple[str, str], str]) -> str:
    if "fieldRef" in source:
        return f"<{source['fieldRef']['fieldPath']}>"
    return secrets[source["secretKeyRef"]["name"], source["secretKeyRef"]["key"]]


def _moved(value: str, mounts: set[str], root: Path) -> str:
    """Move paths on mounted volumes under ``root``."""
    return str(root / value.lstrip("/")) if any(value == m or value.startswith(f"{m}/") for m in mounts) else value


def strings(value: Any) -> Iterator[str]:
    """Every string in a manifest."""
    if isinstance(value, dict):
        for each in value.values():
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)
    elif isinstance(value, str):
        yield value
