"""The values with which the Helm chart is checked, and the manifests that the real helm renders from them."""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from retrofill_core.contract.topics import CONSOLE, OPERATOR, SERVICES
from retrofill_core.settings import Settings
from tests.support import helm
from tests.support.manifests import Manifest, Pod, pods

ROOT = Path(__file__).parents[2]
MAKE = runpy.run_path(str(ROOT / "deploy" / "helm" / "make.py"))
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
    "console": {
        "enabled": True,
        "userHeader": "X-Forwarded-User",
        "proxies": ["10.0.0.0/8", "fd00::7"],
        "roles": {"ada": "operate"},
    },
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
    "cli": {"enabled": True, "secretSettings": {"WEBHOOK_SECRETS": {"secret": "hooks", "key": "all"}}},
    "console": {"enabled": True, "tokens": {"secret": "retrofill-console"}},
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
OWN = {service: f"retrofill.{service}" for service in (*SERVICES, OPERATOR, CONSOLE, "init")}


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
