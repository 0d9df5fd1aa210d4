"""docker-compose.yml, checked without a container engine: which container gets which secret, and
that all are locked down.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from retrofill_core.contract.topics import SERVICES
from retrofill_core.settings import Settings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
PARTS: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
OWN = {name: part for name, part in PARTS.items() if "build" in part}
# The passwords that each container may have. init is not listed: it creates the roles and users, so
# it has almost all of them, but it does not keep running.
KNOWS = {
    "backfill-planner": {"PLANNER", "KAFKA_PLANNER"},
    "run-starter": {"RUN_STARTER", "KAFKA_RUN_STARTER"},
    "deadline-watcher": {"WATCHER", "KAFKA_WATCHER"},
    "callback-runner": {"CALLBACK_RUNNER", "KAFKA_CALLBACK_RUNNER"},
    "console": {"READER", "KAFKA_CONSOLE"},
    "cli": {"READER", "KAFKA_OPERATOR"},
    "spark": set(),
    "spark-master": set(),
    "spark-worker": set(),
    "prometheus": set(),
    "grafana": {"GRAFANA"},
    "kafka-ui": {"KAFKA_UI", "KAFKA_OPERATOR"},
    "postgres": {"POSTGRES"},
    "kafka": {"KAFKA_ADMIN"},
}
# Passwords that web pages ask people for.
FOR_PEOPLE = {"GRAFANA", "KAFKA_UI"}
HOME = "/var/lib/retrofill"
OBSERVE = ("prometheus", "grafana", "kafka-ui")


def passwords(part: dict[str, Any]) -> set[str]:
    """The names of the passwords that a container gets."""
    return set(re.findall(r"\$\{(\w+)_PASSWORD", str(part)))


@pytest.mark.parametrize("name", KNOWS)
def test_a_container_knows_its_own_passwords_only(name: str) -> None:
    assert passwords(PARTS[name]) == KNOWS[name]


def test_a_run_starter_may_take_a_minute_longer_to_stop_than_it_waits_for_its_drivers() -> None:
    starter = PARTS["run-starter"]
    drain = "${RETROFILL_DRAIN_SECONDS:-60}"
    assert starter["environment"]["RETROFILL_DRAIN_SECONDS"] == drain
    assert starter["stop_grace_period"] == f"1m{drain}s"


def test_every_password_is_in_the_example_and_is_used() -> None:
    example = set(re.findall(r"^(\w+)_PASSWORD=$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert example == set().union(*map(passwords, PARTS.values()))
    assert passwords(PARTS["init"]) == example - FOR_PEOPLE


def test_the_examples_may_name_the_callbacks_that_they_name() -> None:
    (given,) = re.findall(r"^RETROFILL_CALLBACKS='(.*)'$", (ROOT / ".env.example").read_text(), re.MULTILINE)
    allowed = json.loads(given)
    pipelines = (ROOT / "examples" / "flights" / "pipeline.py").read_text()
    named = set(re.findall(r'(?:callback=|Callback\(|on_\w+=\[)"(\w+)"', pipelines))
    assert named == set(allowed)
    for place in allowed.values():
        module, _, function = place.partition(":")
        assert f"def {function}(" in (ROOT / "examples" / f"{module.replace('.', '/')}.py").read_text()


@pytest.mark.parametrize("name", OWN)
def test_a_container_of_ours_can_change_nothing_in_itself(name: str) -> None:
    part = OWN[name]
    assert part["read_only"] is True
    assert part["cap_drop"] == ["ALL"]
    assert part["security_opt"] == ["no-new-privileges:true"]


def mounts(part: dict[str, Any]) -> dict[str, str]:
    """Where a container may write: path to the options of its tmpfs, or ``volume``."""
    memory = (mount.partition(":") for mount in part.get("tmpfs", []))
    disk = (mount.split(":") for mount in part.get("volumes", []) if not mount.endswith(":ro"))
    return {path: options for path, _, options in memory} | {mount[-1]: "volume" for mount in disk}


def test_only_the_command_line_makes_tokens_and_only_the_console_reads_them() -> None:
    """Whoever could write the file, as code of users in a driver, could make a token of any role."""
    mounted = {name: each for name, part in PARTS.items() for each in part.get("volumes", []) if "tokens" in each}
    assert mounted == {"console": "tokens:/tokens:ro", "cli": "tokens:/tokens"}
    assert len({PARTS[name]["environment"]["RETROFILL_CONSOLE_TOKENS"] for name in mounted}) == 1


@pytest.mark.parametrize("path", [HOME, "/tmp"])
@pytest.mark.parametrize("name", ["run-starter", "cli"])
def test_where_code_is_unpacked_its_user_may_write_and_libraries_load(name: str, path: str) -> None:
    """Docker mounts a tmpfs noexec unless told otherwise, and no library loads from there."""
    assert mounts(OWN[name]).get(path) == "volume"


@pytest.mark.parametrize("name", [*SERVICES, "console"])
def test_what_says_that_a_process_works_does_not_outlive_it(name: str) -> None:
    """A volume is still there after a restart, when another process may have the same number."""
    found = mounts(OWN[name])
    assert "uid=10001" in found.get(f"{HOME}/run", found[HOME])


@pytest.mark.parametrize("name", OWN)
def test_its_image_is_a_target_and_its_settings_exist(name: str) -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    assert OWN[name]["build"]["target"] in re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE)
    known = {f"RETROFILL_{setting.upper()}" for setting in Settings.model_fields}
    assert {each for each in OWN[name].get("environment", {}) if each.startswith("RETROFILL_")} <= known


@pytest.mark.parametrize("name", ["spark", "spark-worker"])
def test_what_runs_work_of_spark_sees_the_data(name: str) -> None:
    assert "data:/data" in PARTS[name]["volumes"]
    assert PARTS[name]["environment"]["RETROFILL_SPARK_MASTER"] == f"spark://{PARTS['spark-master']['hostname']}:7077"


def test_what_observes_starts_only_when_asked_for() -> None:
    assert {name for name, part in PARTS.items() if part.get("profiles") == ["observe"]} == set(OBSERVE)
    for name in OBSERVE:
        assert PARTS[name]["cap_drop"] == ["ALL"]


def test_prometheus_asks_every_replica_of_each_service() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    asked = {job["job_name"]: job["dns_sd_configs"] for job in config["scrape_configs"]}
    assert set(asked) == set(SERVICES)
    for name, ((dns),) in asked.items():
        port = PARTS[name]["environment"]["RETROFILL_HTTP_PORT"]
        assert (dns["names"], dns["type"], dns["port"]) == ([name], "A", port)
        assert PARTS[name]["environment"]["RETROFILL_HTTP_HOST"] == "0.0.0.0"


def test_what_is_mounted_into_what_observes_exists() -> None:
    mounts = [volume.split(":")[0] for name in OBSERVE for volume in PARTS[name].get("volumes", [])]
    files = [mount for mount in mounts if mount.startswith("./")]
    assert len(files) == 3
    assert all((ROOT / file).exists() for file in files)


def test_nothing_but_loopback_is_published() -> None:
    ports = [port for part in PARTS.values() for port in part.get("ports", [])]
    assert len(ports) == 3 + len(OBSERVE)
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_kafka_lets_nobody_in_without_a_login() -> None:
    kafka = PARTS["kafka"]["environment"]
    protocols = dict(pair.split(":") for pair in kafka["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    assert set(protocols.values()) == {"SASL_PLAINTEXT"}
    assert kafka["KAFKA_AUTHORIZER_CLASS_NAME"].endswith("StandardAuthorizer")
    assert kafka["KAFKA_ALLOW_EVERYONE_IF_NO_ACL_FOUND"] == "false"


def test_the_page_names_the_versions_of_the_servers() -> None:
    page = (ROOT / "deploy" / "README.md").read_text()
    for part, name in (("postgres", "Postgres"), ("kafka", "Kafka")):
        assert f"{name} {PARTS[part]['image'].rpartition(':')[2]}" in page
