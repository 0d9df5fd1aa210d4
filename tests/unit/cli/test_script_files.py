"""Files of scripts that do not exist: refused where they were to be shipped, and said where only hosts may have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.definitions import daily

from retrofill.errors import UserError
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.settings import Settings
from retrofill_tools.cli.pipelines import check_secrets, missing_files


def with_files(script: str, **lists: list[str]) -> PipelineDefinition:
    task = {"name": "load", "kind": "submit", "submit": {"script": script, **lists}}
    return PipelineDefinition.model_validate({**daily().model_dump(mode="json"), "tasks": [task]})


@pytest.mark.parametrize("kind", ["script", "jars", "py_files", "files"])
def test_one_beside_the_pipeline_that_does_not_exist_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "job.py").touch()
    missing = str(tmp_path / "libs" / "missing")
    made = with_files(missing) if kind == "script" else with_files(str(tmp_path / "job.py"), **{kind: [missing]})
    with pytest.raises(
        UserError, match=f"^p: task 'load': {missing} does not exist: correct the path, or put the file there$"
    ):
        missing_files(made, [tmp_path / "elsewhere", tmp_path])


def test_what_hosts_may_have_is_said_and_addresses_are_not_looked_for(tmp_path: Path) -> None:
    (tmp_path / "job.py").touch()
    made = with_files(str(tmp_path / "job.py"), jars=["/no/such/x.jar", "s3a://jobs/y.jar", "local:///opt/z.jar"])
    assert missing_files(made, [tmp_path]) == [
        "p: task 'load': /no/such/x.jar does not exist on this machine: each host of pool default needs it there"
    ]


def with_command(*command: str, **more: Any) -> PipelineDefinition:
    task = {"name": "load", "kind": "command", "submit": {"script": command[0], "args": command[1:], **more}}
    return PipelineDefinition.model_validate({**daily().model_dump(mode="json"), "tasks": [task]})


def test_a_program_is_looked_for_and_must_be_one(tmp_path: Path) -> None:
    (tmp_path / "load.sh").touch()
    with pytest.raises(UserError, match=f"^p: task 'load': {tmp_path}/load.sh is not executable: begin it"):
        missing_files(with_command(f"{tmp_path}/load.sh"), [tmp_path])
    (tmp_path / "load.sh").chmod(0o755)
    assert missing_files(with_command(f"{tmp_path}/load.sh"), [tmp_path]) == missing_files(with_command("sh"), []) == []
    assert missing_files(with_command("no-such-program"), [tmp_path]) == [
        "p: task 'load': there is no program no-such-program on this machine: each host of pool default needs it"
    ]


def test_a_secret_that_a_pool_does_not_have_is_refused_where_the_pool_is_known() -> None:
    made = with_command("true", env={"KEY": "{secret[KEY]}"})
    check_secrets(made, Settings())
    for env in ({"TOKEN": {"variable": "X"}}, {"KEY": "not from a file"}):
        settings = Settings.model_validate({"pools": {"default": {"env": env}}})
        with pytest.raises(
            UserError, match=r"^p: task 'load': pool default has no secret 'KEY'; it has: (TOKEN|none): give"
        ):
            check_secrets(made, settings)
    check_secrets(made, Settings.model_validate({"pools": {"default": {"env": {"KEY": {"file": "/x"}}}}}))


def test_a_file_of_each_interval_is_there_if_any_is(tmp_path: Path) -> None:
    made = with_command("true", files=[f"{tmp_path}/rules/{{interval.start:%Y/%m}}.json"])
    with pytest.raises(
        UserError, match=r"rules/\{interval.start:%Y/%m}.json does not exist: correct the path, or put the file there"
    ):
        missing_files(made, [tmp_path])
    (tmp_path / "rules" / "2013").mkdir(parents=True)
    (tmp_path / "rules" / "2013" / "01.json").touch()
    assert missing_files(made, [tmp_path]) == []
