"""The start of a pool's drivers: their Python, their environment, and what is masked."""

from __future__ import annotations

import html
import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from tests.support.definitions import daily
from tests.unit.driver.pooled import Recorder, launch

from retrofill.driver.config import Config
from retrofill.masking import configure_masking, masked
from retrofill.outputs.kept import AREA
from retrofill.protocol.table_output import TableOutput
from retrofill.spark.home import SparkHome
from retrofill.spark.java import bundled
from retrofill.states import AttemptMode
from retrofill_core.domain.pipeline import SubmitScript, TaskDefinition
from retrofill_core.pools import unknown_secret
from retrofill_core.settings import NotConfigured, Settings
from run_starter.executors import submission
from run_starter.executors.build import Dispatch, Pools
from run_starter.executors.command import Interpreters, drivers_of, masks, told, versions
from run_starter.executors.local_pool import LocalPool

SECRET = 'hunter2 "quoted"'


def settings(pools: dict[str, Any], **more: Any) -> Settings:
    return Settings.model_validate({**more, "pools": pools})


@pytest.fixture
def configured() -> Any:
    yield
    configure_masking(())


def test_variables_come_from_where_they_are(tmp_path: Path, configured: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # A demo may have left the addresses of its stack in the working directory.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").write_text(f"{SECRET}\nsecond line\n")
    env = {"PLAIN": "x", "KEY": {"file": str(tmp_path / "key")}, "TOKEN": {"variable": "HOSTS_TOKEN"}}
    made = settings({"gpu": {"env": env, "spark_remote": "sc://gpu:1"}, "cpu": {}}, redact=["canary"])
    inherited = {"HOSTS_TOKEN": "token-of-the-host", "OTHER": "y"}
    gpu, cpu = (drivers_of(made, name, inherited) for name in ("gpu", "cpu"))
    assert {name: gpu.environment[name] for name in env} == {
        "PLAIN": "x",
        "KEY": f"{SECRET}\nsecond line",
        "TOKEN": "token-of-the-host",
    }
    assert (told(gpu.settings)["spark_remote"], told(cpu.settings)["spark_remote"]) == ("sc://gpu:1", None)
    # Nor do the drivers of other pools inherit what is this one's.
    assert gpu.withheld == cpu.withheld == {"HOSTS_TOKEN"}
    assert cpu.environment == {}
    configure_masking(told(gpu.settings)["redact"])
    shown = masked(f"a {SECRET} b, {json.dumps(SECRET)}, second line, token-of-the-host, canary, x")
    assert shown == 'a *** b, "***", ***, ***, ***, x'
    assert gpu.settings.redact[0] == "canary"


def test_short_values_are_not_masked() -> None:
    (only,) = masks(["abc", "", "a.cd\n  \nxyz"])
    assert re.fullmatch(only, "a.cd")


@pytest.mark.parametrize(
    "secret",
    [
        "hunter2",
        "p4ss.w*rd+[x](y)|$^{2}\\d",
        "sl/ash=and&more?#",
        "a b  c",
        "qu\"ot'e",
        "back\\\\slash\\",
        "gehäuse😀",
        "<b>&amp;",
    ],
)
def test_a_secret_is_masked_however_other_texts_write_it(secret: str, configured: None) -> None:
    configure_masking(masks([secret, "another", secret[:5]]))
    quoted = [quote(secret), quote(secret, safe=""), quote_plus(secret), quote(secret, safe="").lower()]
    in_json = [json.dumps(secret), json.dumps(secret, ensure_ascii=False), json.dumps(json.dumps(secret))]
    for text in (secret, *quoted, *in_json, repr(secret), html.escape(secret), re.escape(secret), shlex.quote(secret)):
        shown = masked(f"jdbc://h/?p={text}&x=1 another")
        assert shown.endswith("&x=1 ***") and not set(re.findall(r"\w{3,}", secret)) & set(
            re.findall(r"\w{3,}", shown)
        ), text


def test_each_line_of_a_secret_is_masked(configured: None) -> None:
    key = "-----BEGIN KEY-----\nMIIEvQ+/IBADANBg==\nkqhkiG9w0\n-----END KEY-----\n"
    configure_masking(masks([key]))
    for text in (key, repr(key), json.dumps({"key": key}), key.replace("\n", " "), key.replace("\n", "\r\n")):
        assert not re.search("MII|kqh|BEGIN", masked(text)), text


def test_a_secret_that_the_pool_does_not_have_is_named() -> None:
    submit = SubmitScript(script="true", env={"KEY": "{secret[KEY]}"})
    task = TaskDefinition(name="load", kind="command", submit=submit)
    made = daily(pool="gpu").model_copy(update={"tasks": (task,)})
    assert unknown_secret(made, {"KEY"}) is None
    assert unknown_secret(made, {"TOKEN"}) == (
        "task 'load': pool gpu has no secret 'KEY'; it has: TOKEN: give it one in its env, from a file or a variable"
    )


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        (
            {"env": {"KEY": {"file": "/nowhere"}}},
            "pool gpu: the value of KEY cannot be read from /nowhere: No such file",
        ),
        (
            {"env": {"KEY": {"variable": "NOT_SET"}}},
            "pool gpu: the value of KEY comes from the variable NOT_SET, which is not set",
        ),
        ({"driver_python": "/nowhere/python"}, "pool gpu: /nowhere/python cannot be executed: set driver_python"),
    ],
)
def test_what_is_missing_is_said(pool: dict[str, Any], said: str) -> None:
    with pytest.raises(NotConfigured, match=re.escape(said)):
        drivers_of(settings({"gpu": pool}), "gpu", {})


DRIVER = """
import json, os, pathlib, sys
out = pathlib.Path(sys.argv[0]).with_suffix(".json")
settings = json.loads(sys.stdin.readline())["settings"]
out.write_text(json.dumps({"env": dict(os.environ), "argv": sys.argv, "settings": settings}))
print(json.dumps({"ready": {"python": "3.9.1", "spark": "3.5.9"}}), flush=True)
sys.stdin.read()
"""


def test_a_driver_gets_its_pools_environment_and_says_its_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a real process."""
    monkeypatch.setenv("RETROFILL_POOLS", json.dumps({"gpu": {"env": {"KEY": {"variable": "HOSTS_KEY"}}}}))
    monkeypatch.setenv("RETROFILL_SERVES", "gpu")
    monkeypatch.setenv("HOSTS_KEY", SECRET)
    file = tmp_path / "driver.py"
    file.write_text(DRIVER)
    drivers = drivers_of(Settings(home=tmp_path, driver_slots=1), "gpu")
    host = Recorder()
    pool = LocalPool(drivers, host, command=(drivers.python, str(file)))
    try:
        while pool.condition().room == 0:
            host.changes.get(timeout=20)
        found = json.loads(file.with_suffix(".json").read_text())
        condition = pool.condition()
    finally:
        pool.close()
    assert found["env"]["KEY"] == SECRET
    assert "HOSTS_KEY" not in found["env"]
    assert not [name for name in found["env"] if name.startswith("RETROFILL_")]
    config = Config.of(found["settings"])
    assert config == Config(log_level="INFO", redact=drivers.settings.redact, bundled_java=bundled())
    assert not [each for each in found["argv"] if "hunter2" in each]
    assert (condition.python, condition.spark) == ("3.9.1", "3.5.9")


def test_its_own_python_runs_the_driver() -> None:
    drivers = drivers_of(settings({"gpu": {"driver_python": sys.executable}}), "gpu")
    assert drivers.python == sys.executable


@pytest.mark.parametrize(("ready", "found"), [(True, (None, None)), ({"python": "3.11"}, ("3.11", None))])
def test_versions_are_what_a_driver_says(ready: Any, found: tuple[str | None, str | None]) -> None:
    said = versions(ready)
    assert (said.python, said.spark) == found


class Executor:
    """Records what it is given."""

    def __init__(self, *, idle: bool = True) -> None:
        self.launches: list[Any] = []
        self._idle = idle

    def has_idle(self) -> bool:
        return self._idle

    def launch(self, launch: Any) -> None:
        self.launches.append(launch)


def of_pool(name: str, **conf: str) -> Any:
    given = launch(1)
    definition = given.pipeline.model_copy(update={"pool": name, "spark_conf": conf})
    return given.__class__(**{**vars(given), "pipeline": definition})


def test_an_attempt_goes_to_the_drivers_of_its_pool() -> None:
    default, gpu = Executor(), Executor()
    pools = Pools({"default": default, "gpu": gpu})  # type: ignore[dict-item]
    pools.launch(of_pool("gpu"))
    assert (len(default.launches), len(gpu.launches)) == (0, 1)


def test_a_pools_settings_of_sessions_are_below_the_pipelines_own() -> None:
    conf = {"spark.jars": "/a", "spark.sql.shuffle.partitions": "2"}
    executor: Any = Executor()
    drivers = drivers_of(settings({"gpu": {"session_conf": conf}}), "gpu")
    dispatch = Dispatch(drivers, Recorder(), Interpreters(drivers), executor, executor)
    # What only the pool sets need not be allowed for pipelines.
    dispatch.launch(of_pool("gpu", **{"spark.sql.shuffle.partitions": "3"}))
    (given,) = executor.launches
    assert given.pipeline.spark_conf == {"spark.jars": "/a", "spark.sql.shuffle.partitions": "3"}


FILES, TABLE = "/data/day=1", str(TableOutput("lake.t", "lake.s", "day", "date", "iceberg"))
SCRIPT = TaskDefinition(name="s", kind="submit", submit=SubmitScript(script="/s.py"))


def dispatched(
    mode: AttemptMode,
    executor: str,
    *outputs: str,
    idle: bool = True,
    restores: int | None = None,
    scripts: bool = False,
    deploy_mode: str = "client",
    **more: Any,
) -> tuple[str, Any]:
    """Who is given such an attempt, and the attempt: the pool, spark-submit or what clears earlier ones away."""
    given: dict[str, Any] = {name: Executor(idle=idle) for name in ("pool", "spark-submit", "clearing")}
    drivers = drivers_of(settings({"gpu": {}}, spark_submit_deploy_mode=deploy_mode), "gpu")
    dispatch = Dispatch(drivers, Recorder(), Interpreters(drivers), given["pool"], given["spark-submit"])
    dispatch.clearing = given["clearing"]
    made = of_pool("gpu")
    values = {"executor": executor, **({"tasks": (SCRIPT,)} if scripts else {})}
    run = replace(made.runs[0], outputs=outputs, restores=restores)
    dispatch.launch(
        replace(made, pipeline=made.pipeline.model_copy(update=values), mode=mode, runs=(run,), **more),
    )
    ((name, launches),) = [(name, each.launches) for name, each in given.items() if each.launches]
    return name, launches[0]


@pytest.mark.parametrize(
    ("mode", "outputs", "earlier", "publishers", "expected"),
    [
        (AttemptMode.EACH, (), (7,), (), "clearing"),
        (AttemptMode.EACH, (), (), (7,), "spark-submit"),
        (AttemptMode.PUBLISH, (TABLE,), (7,), (), "spark-submit"),
        (AttemptMode.PUBLISH, (TABLE, FILES), (), (7,), "clearing"),
        (AttemptMode.PUBLISH, (FILES,), (), (7,), "pool"),
    ],
)
def test_what_uses_spark_again_waits_for_earlier_applications(
    mode: AttemptMode,
    outputs: tuple[str, ...],
    earlier: tuple[int, ...],
    publishers: tuple[int, ...],
    expected: str,
) -> None:
    given, _ = dispatched(mode, "spark-submit", *outputs, earlier=earlier, publishers=publishers)
    assert given == expected


@pytest.mark.parametrize("scripts", [False, True])
@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("executor", ["pool", "spark-submit"])
@pytest.mark.parametrize("outputs", [(FILES,), (TABLE,), (FILES, TABLE)])
def test_tables_are_published_by_their_pipelines_executor_and_directories_by_any_process(
    outputs: tuple[str, ...], executor: str, idle: bool, scripts: bool
) -> None:
    given, launch = dispatched(AttemptMode.PUBLISH, executor, *outputs, idle=idle, scripts=scripts)
    files = outputs == (FILES,)
    assert given == (executor if not files else "pool" if idle else "spark-submit")
    assert launch.needs_no_spark == files


@pytest.mark.parametrize(("output", "plain"), [(FILES, True), (TABLE, False)])
def test_an_undo_of_directories_needs_no_spark_either(output: str, plain: bool) -> None:
    given, launch = dispatched(AttemptMode.EACH, "spark-submit", output, restores=1)
    assert (given, launch.needs_no_spark) == ("spark-submit", plain)


@pytest.mark.parametrize("seen", [True, False])
def test_what_a_driver_in_the_cluster_wrote_is_published_here_only_if_it_is_seen_here(
    tmp_path: Path, seen: bool
) -> None:
    if seen:
        (tmp_path / AREA).mkdir()
    output = str(tmp_path / "day=1")
    given, launch = dispatched(AttemptMode.PUBLISH, "spark-submit", output, deploy_mode="cluster")
    assert (given, launch.needs_no_spark) == (("pool", True) if seen else ("spark-submit", False))


def test_jars_are_added_to_those_of_the_settings() -> None:
    made = settings({"gpu": {"spark_jars": ["/a.jar", "/b.jar"]}}, spark_submit_conf={"spark.jars": "/z.jar"})
    conf = submission.driver_conf(SparkHome.of(drivers_of(made, "gpu").settings), launch(1))
    assert conf["spark.jars"] == "/z.jar,/a.jar,/b.jar"
