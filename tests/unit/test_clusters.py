"""Names of applications in clusters, how they are found and killed, and what is said if they cannot be.

The clients are scripts that print what the real ones do; ``tests/integration/stack`` asks real clusters.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from retrofill.driver.config import Config
from retrofill.driver.submit import ending
from retrofill.spark import clusters
from retrofill.spark.clusters import TAGS, CannotKill, Kubernetes, Yarn, cluster_of, end, tag_of, tag_of_script
from retrofill.spark.home import SparkHome
from retrofill_core.settings import Settings

SECRET = "hunter2"
POD = """Application status (driver):
\t pod name: {name}
\t namespace: backfills
\t labels: spark-role -> driver, spark-app-name -> phase
\t node name: N/A
\t phase: {phase}
\t container status: N/A
"""


def home_of(master: str, folder: Path | None = None) -> SparkHome:
    return SparkHome.of(Settings(spark_home=folder, spark_submit_master=master))


def kubernetes(folder: Path | None = None, namespace: str = "default") -> Kubernetes:
    conf = {"spark.kubernetes.namespace": namespace}
    cluster = cluster_of(home_of("k8s://https://api:6443", folder), conf, {})
    assert isinstance(cluster, Kubernetes)
    return cluster


def yarn(folder: Path | None = None) -> Yarn:
    cluster = cluster_of(home_of("yarn", folder), {}, {})
    assert isinstance(cluster, Yarn)
    return cluster


def program(folder: Path, name: str, text: str) -> Path:
    """Make an executable of a Spark installation in ``folder``."""
    file = folder / "bin" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return folder


def test_a_tag_is_of_one_attempt_of_one_installation_and_fit_for_all_clusters() -> None:
    tags = [tag_of(installation, attempt) for installation in ("a", "b") for attempt in (1, 11)]
    tags += [tag_of_script(tags[0], 2**62) for _ in range(2)]
    assert len(set(tags)) == 6
    for tag in tags:
        assert tag.isascii() and tag == tag.lower() and len(tag) <= 63


def test_an_application_on_yarn_keeps_the_users_tags_and_runs_once() -> None:
    theirs = {TAGS: "team-a,nightly", "spark.yarn.maxAppAttempts": "3"}
    assert yarn().settings(theirs, ["x", "y"], remote=False) == {TAGS: "team-a,nightly,x,y"}
    assert yarn().settings({}, ["x", "x"], remote=True) == {
        TAGS: "x",
        "spark.yarn.maxAppAttempts": "1",
        "spark.yarn.submit.waitAppCompletion": "true",
    }


def test_a_drivers_pod_has_the_name_by_which_it_is_found_where_it_is_looked_for() -> None:
    cluster = kubernetes(namespace="backfills")
    assert cluster.settings({}, ["x", "x"], remote=False) == {}
    assert cluster.settings({"spark.kubernetes.namespace": "elsewhere"}, ["x", "x-1"], remote=True) == {
        "spark.kubernetes.driver.pod.name": "x-1",
        "spark.kubernetes.namespace": "backfills",
        "spark.kubernetes.submission.waitAppCompletion": "true",
    }


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077"])
def test_elsewhere_applications_end_with_their_drivers(master: str) -> None:
    assert cluster_of(home_of(master), {}, {}) is None


def test_without_tags_nothing_is_asked(tmp_path: Path) -> None:
    assert end(yarn(tmp_path / "no-spark"), []) == []


def test_pods_of_other_attempts_and_ended_ones_are_left_alone(tmp_path: Path) -> None:
    states = [
        ("t-1", "Running"),
        ("t-1-7-ab", "Pending"),
        ("t-11", "Running"),
        ("t-1-8-cd", "Failed"),
        ("u", "Running"),
    ]
    printed = "\n".join(POD.format(name=name, phase=phase) for name, phase in states)
    program(tmp_path, "spark-submit", f"cat >&2 <<'END'\nSubmitting a request for the status\n{printed}\nEND")
    assert kubernetes(tmp_path).live(["t-1"]) == ["t-1", "t-1-7-ab"]


def test_applications_on_yarn_are_read_from_the_first_column_and_killed_until_they_ended(tmp_path: Path) -> None:
    table = (
        "Total number of applications (application-types: []) :1\n  application_17_0001\t application_17_0002 \t SPARK"
    )
    asked, killed = tmp_path / "asked", tmp_path / "killed"
    program(
        tmp_path,
        "spark-class",
        f'echo "$@" >> {asked}; case "$*" in *-kill*) touch {killed};; *) [ -e {killed} ] || echo "{table}";; esac',
    )
    assert end(yarn(tmp_path), ["t-1", "t-2"]) == ["application_17_0001"]
    listed, kill, again = asked.read_text().splitlines()
    assert "-appTags t-1,t-2 -appStates NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING" in listed
    assert kill.endswith("-kill application_17_0001")
    assert again == listed


def test_thousands_of_tags_and_applications_are_more_than_one_call_of_yarns_client_takes(tmp_path: Path) -> None:
    tags = [tag_of("ours", 10**9 + n) for n in range(5_000)]
    asked = tmp_path / "asked"
    # Answers with the number of the question, and with what is in all answers.
    number = f"$(wc -l < {asked})"
    program(
        tmp_path, "spark-class", f'echo "$@" >> {asked}; printf "application_17_0\tx\napplication_17_%s\tx\n" {number}'
    )
    live = yarn(tmp_path).live(tags)
    words = [line.split()[4] for line in asked.read_text().splitlines()]
    assert [tag for word in words for tag in word.split(",")] == tags
    assert live == sorted(f"application_17_{n}" for n in range(len(words) + 1))
    asked.unlink()
    ids = [f"application_17_{n:04}" for n in range(5_000)]
    yarn(tmp_path).kill(ids)
    kills = [line.split()[3:] for line in asked.read_text().splitlines()]
    assert [id for each in kills for id in each] == ids
    assert max(map(len, [*(word.split(",") for word in words), *kills])) <= 500


def test_a_client_that_finds_no_applications_is_asked_nothing_without_tags(tmp_path: Path) -> None:
    assert yarn(tmp_path / "no-spark").live([]) == []


def test_an_application_that_does_not_end_is_an_error(tmp_path: Path) -> None:
    program(tmp_path, "spark-class", "echo '  application_17_0001\t x'")
    with pytest.raises(CannotKill, match="application_17_0001 did not end within 0 s"):
        end(yarn(tmp_path), ["t"], seconds=0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo 'WARN x\nno such host' >&2; exit 3", r"^yarn cannot be asked: no such host$"),
        (
            "printf 'Exception in thread main: refused\\n\\tat x.YException\\nlast\\n' >&2; exit 1",
            r"asked: Exception in thread main: refused$",
        ),
        ("exit 1", r"it does not say why$"),
        (None, r"bin/spark-class: No such file or directory$"),
    ],
)
def test_a_cluster_that_cannot_be_asked_is_an_error_of_one_line(text: str | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        program(tmp_path, "spark-class", text)
    with pytest.raises(CannotKill, match=said) as raised:
        end(yarn(tmp_path), ["x"])
    assert "\n" not in str(raised.value)


def test_a_cluster_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "CALL_SECONDS", 0.2)
    program(tmp_path, "spark-class", "exec sleep 60")
    with pytest.raises(CannotKill, match=r"yarn did not answer within 0\.2 s$"):
        end(yarn(tmp_path), ["x"])


@pytest.mark.parametrize("answers", [True, False])
def test_a_process_of_its_own_ends_what_a_killed_driver_left(answers: bool, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    lists = (
        f'[ -e {killed} ] || echo " application_1_7 x"'
        if answers
        else "echo 'java.io.IOException: refused' >&2; exit 1"
    )
    program(tmp_path, "spark-class", f'case "$3" in -list) {lists};; -kill) echo "$@" > {killed};; esac')
    command, given = ending(Config(spark_home=tmp_path, spark_submit_master="yarn"), {"spark.x": SECRET}, "x-1")
    assert SECRET not in " ".join(command)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if answers:
        assert (done.returncode, done.stderr) == (0, "")
        assert killed.read_text().split()[-2:] == ["-kill", "application_1_7"]
    else:
        assert (done.returncode, done.stderr) == (1, "yarn cannot be asked: java.io.IOException: refused\n")
