"""The user's code in a warm process: imported once, and afresh when a file of it changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrofill.domain.pipeline import CodeLocation
from retrofill.driver.code import Code, CodeMoved

TEXT = "from retrofill import Pipeline\nimport {helper}\nflights = Pipeline({helper}.NAME, schedule='@daily')\n"


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> CodeLocation:
    helper = f"helper_{request.node.name}"
    (tmp_path / f"{helper}.py").write_text("NAME = 'one'\n")
    file = tmp_path / f"main_{request.node.name}.py"
    file.write_text(TEXT.format(helper=helper))
    return CodeLocation(file=str(file), attribute="flights")


def helper(place: CodeLocation) -> Path:
    assert place.file is not None
    return Path(place.file.replace("main_", "helper_"))


def test_unchanged_code_is_imported_once(place: CodeLocation) -> None:
    code = Code()
    assert code.pipeline(place) is code.pipeline(place)


def test_a_changed_helper_is_seen_even_within_the_same_second(place: CodeLocation) -> None:
    code = Code()
    assert code.pipeline(place).name == "one"
    for name in ("two", "six"):
        helper(place).write_text(f"NAME = '{name}'\n")
        assert code.pipeline(place).name == name


def test_a_broken_edit_is_the_users_own_error_and_its_repair_is_seen(place: CodeLocation) -> None:
    code = Code()
    code.pipeline(place)
    helper(place).write_text("NAME = nonesuch\n")
    for _ in range(2):
        with pytest.raises(NameError, match="nonesuch"):
            code.pipeline(place)
    helper(place).write_text("NAME = 'ten'\n")
    assert code.pipeline(place).name == "ten"


def test_a_pipeline_that_is_no_longer_there(place: CodeLocation) -> None:
    with pytest.raises(CodeMoved, match="no pipeline 'gone'"):
        Code().pipeline(place.model_copy(update={"attribute": "gone"}))


def test_functions_of_the_users_module_travel_by_value(place: CodeLocation) -> None:
    from pyspark import cloudpickle

    code = Code()
    code.pipeline(place)
    assert Path(place.file or "").stem in cloudpickle.list_registry_pickle_by_value()
