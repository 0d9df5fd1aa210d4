"""docker-compose.yml without an engine: who gets which secret, and that every container is locked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from retrofill.settings import Settings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
PARTS: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
OWN = {name: part for name, part in PARTS.items() if "build" in part}
# Who knows which passwords; init makes the roles and users, so it knows all but none of it runs on.
KNOWS = {
    "backfill-planner": {"PLANNER", "KAFKA_PLANNER"},
    "run-starter": {"RUN_STARTER", "KAFKA_RUN_STARTER", "KAFKA_DRIVER"},
    "deadline-watcher": {"WATCHER", "KAFKA_WATCHER"},
    "callback-runner": {"CALLBACK_RUNNER", "KAFKA_CALLBACK_RUNNER"},
    "cli": {"READER", "KAFKA_OPERATOR"},
    "spark": set(),
    "postgres": {"POSTGRES"},
    "kafka": {"KAFKA_ADMIN"},
}


def passwords(part: dict[str, Any]) -> set[str]:
    """Names of the passwords that a container is given."""
    return set(re.findall(r"\$\{(\w+)_PASSWORD", str(part)))


@pytest.mark.parametrize("name", KNOWS)
def test_a_container_knows_its_own_passwords_only(name: str) -> None:
    assert passwords(PARTS[name]) == KNOWS[name]


def test_every_password_is_in_the_example_and_is_used() -> None:
    example = set(re.findall(r"^(\w+)_PASSWORD=$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert example == set().union(*map(passwords, PARTS.values()))
    assert passwords(PARTS["init"]) == example


@pytest.mark.parametrize("name", OWN)
def test_a_container_of_ours_can_change_nothing_in_itself(name: str) -> None:
    part = OWN[name]
    assert part["read_only"] is True
    assert part["cap_drop"] == ["ALL"]
    assert part["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", OWN)
def test_its_image_is_a_target_and_its_settings_exist(name: str) -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    assert OWN[name]["build"]["target"] in re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE)
    known = {f"RETROFILL_{setting.upper()}" for setting in Settings.model_fields}
    assert {each for each in OWN[name]["environment"] if each.startswith("RETROFILL_")} <= known


def test_nothing_but_loopback_is_published() -> None:
    ports = [port for part in PARTS.values() for port in part.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_kafka_lets_nobody_in_without_a_login() -> None:
    kafka = PARTS["kafka"]["environment"]
    protocols = dict(pair.split(":") for pair in kafka["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    assert set(protocols.values()) == {"SASL_PLAINTEXT"}
    assert kafka["KAFKA_AUTHORIZER_CLASS_NAME"].endswith("StandardAuthorizer")
    assert kafka["KAFKA_ALLOW_EVERYONE_IF_NO_ACL_FOUND"] == "false"
