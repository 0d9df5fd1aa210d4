"""Pools: what a section may say, who serves it, what it replaces, and that no secret of it shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retrofill_core.pools import Pool, pools_of, served, settings_of
from retrofill_core.settings import Settings, WrongSetting, read_settings
from retrofill_tools.cli.installation import shown

SECRET = "hunter2-hunter2"
TOML = f"""
[gpu]
spark_remote = "sc://gpu:15002/;token={SECRET}"
driver_slots = 3
driver_start_seconds = 600
spark_jars = ["/opt/a.jar"]
session_conf = {{"spark.hadoop.fs.s3a.secret.key" = "{SECRET}", "spark.sql.shuffle.partitions" = "8"}}

[gpu.env]
REGION = "eu-west-1"
PASSWORD = "{SECRET}"
KEY = {{file = "/run/secrets/key"}}
TOKEN = {{variable = "GPU_TOKEN"}}

["night.shift"]
"""


@pytest.fixture(autouse=True)
def _no_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_pools_are_read_from_a_file_or_from_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pools.toml"
    file.write_text(TOML)
    monkeypatch.setenv("RETROFILL_POOLS_FILE", str(file))
    settings = read_settings()
    assert list(pools_of(settings)) == ["default", "gpu", "night.shift"]
    assert served(settings) == ["default", "gpu", "night.shift"]
    assert settings.pools["gpu"].sources.keys() == {"KEY", "TOKEN"}
    monkeypatch.setenv("RETROFILL_POOLS", json.dumps({"cpu": {"driver_slots": 1}}))
    monkeypatch.setenv("RETROFILL_SERVES", "cpu, default,cpu")
    settings = read_settings()
    assert (list(settings.pools), served(settings)) == (["cpu"], ["cpu", "default"])
    monkeypatch.setenv("RETROFILL_SERVES", '["default"]')
    assert served(read_settings()) == ["default"]


def test_without_pools_the_settings_are_the_default_one() -> None:
    settings = Settings(spark_remote="sc://a:1", driver_slots=7)
    assert served(settings) == ["default"]
    assert settings_of(settings, "default") == settings


def test_a_pool_replaces_what_it_sets() -> None:
    pools = {"gpu": {"spark_remote": "sc://gpu:1", "driver_slots": 3}, "default": {"driver_slots": 1, "spark_jars": []}}
    settings = Settings.model_validate({"spark_remote": "sc://a:1", "spark_jars": ["/a.jar"], "pools": pools})
    gpu, default = (settings_of(settings, name) for name in ("gpu", "default"))
    assert (gpu.spark_remote, gpu.driver_slots, gpu.spark_jars) == ("sc://gpu:1", 3, ["/a.jar"])
    assert (default.spark_remote, default.driver_slots, default.spark_jars) == ("sc://a:1", 1, [])


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        ("[gpu", "Expected ']' at the end of a table declaration"),
        ('{"gpu": ', "Expecting value: line 1 column 9"),
        ("gpu = 3", "pool gpu: Input should be a valid dictionary"),
        ('["a b"]', "invalid name 'a b'"),
        (f'[gpu]\nspark_remote = "{SECRET}"', "pool gpu.spark_remote: a Spark Connect address is like"),
        (f'[gpu]\nslots = "{SECRET}"', "pool gpu.slots: Extra inputs are not permitted"),
        ("[gpu]\ndriver_slots = 0", "pool gpu.driver_slots: Input should be greater than or equal to 1"),
        (f'[gpu.env]\nA = {{fil = "{SECRET}"}}', "pool gpu.env.A.fil: Extra inputs are not permitted"),
        ("[gpu.env]\nA = {}", "pool gpu.env.A: name a file or a variable"),
        ('[gpu.env]\nA = {file = "/a", variable = "B"}', "pool gpu.env.A: name a file or a variable"),
        ("[gpu.env]\nA = 3", "pool gpu.env.A: Input should be a valid string"),
        ('[gpu.env]\nRETROFILL_HOME = "/"', "pool gpu.env: 'RETROFILL_HOME' cannot be set"),
        (
            '[gpu]\nspark_submit_master = "yarn"\nspark_submit_deploy_mode = "cluster"',
            "RETROFILL_DRIVER_HOST must be an address of this machine",
        ),
        (
            '[gpu]\nspark_submit_master = "yarn"\nspark_submit_deploy_mode = "cluster"\ndriver_host = "me"\n'
            'env = {KEY = {variable = "K"}}',
            "pool gpu: drivers in a cluster get 'KEY' only through Spark's settings",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line_without_values(
    monkeypatch: pytest.MonkeyPatch, pools: str, said: str
) -> None:
    monkeypatch.setenv("RETROFILL_POOLS", pools)
    with pytest.raises(WrongSetting) as raised:
        read_settings()
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert SECRET not in str(raised.value)


def test_a_pool_that_is_served_must_be_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETROFILL_SERVES", "gpu")
    with pytest.raises(WrongSetting, match="RETROFILL_SERVES names the pool 'gpu', which RETROFILL_POOLS does not"):
        read_settings()


def test_no_secret_is_shown() -> None:
    settings = Settings.model_validate({"pools": TOML})
    values: dict[str, Any] = shown(settings)
    texts = [json.dumps(values), repr(settings), str(settings.pools), repr(settings.pools["gpu"])]
    assert [text for text in texts if SECRET in text] == []
    gpu = values["RETROFILL_POOLS"]["gpu"]
    assert gpu["driver_slots"] == 3
    assert gpu["env"]["KEY"] == {"file": "/run/secrets/key"}
    assert gpu["session_conf"]["spark.sql.shuffle.partitions"] == "8"


def test_every_key_but_a_few_is_a_setting() -> None:
    """So that they are documented and replaced under the same name."""
    own = {"driver_python", "driver_environment", "env", "session_conf"}
    assert Pool.model_fields.keys() - own <= Settings.model_fields.keys()
    assert not own & Settings.model_fields.keys()
