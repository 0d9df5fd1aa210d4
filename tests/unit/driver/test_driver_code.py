"""User code in the process of an attempt, in place or from an archive."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from retrofill.user_code.loading import Code, CodeMoved
from retrofill_core.domain.pipeline import CodeLocation
from retrofill_core.settings import Settings
from retrofill_core.user_code.archive import build
from retrofill_core.user_code.store import FolderStore
from retrofill_core.user_code.unpacked import unpacked

TEXT = "from retrofill import Pipeline\nimport {helper}\nflights = Pipeline({helper}.NAME, schedule='@daily')\n"


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> CodeLocation:
    helper = f"helper_{request.node.name}"
    (tmp_path / f"{helper}.py").write_text("NAME = 'one'\n")
    file = tmp_path / f"main_{request.node.name}.py"
    file.write_text(TEXT.format(helper=helper))
    return CodeLocation(file=str(file), attribute="flights")


def made() -> Code:
    """Code without a store, which code at a file path does not need."""
    return Code(lambda sha256: unpacked(Settings(), sha256))


def helper(place: CodeLocation) -> Path:
    assert place.file is not None
    return Path(place.file.replace("main_", "helper_"))


def test_unchanged_code_is_imported_once(place: CodeLocation) -> None:
    code = made()
    assert code.pipeline(place) is code.pipeline(place)


def test_an_error_of_the_code_is_the_users_own(place: CodeLocation) -> None:
    helper(place).write_text("NAME = nonesuch\n")
    with pytest.raises(NameError, match="nonesuch"):
        made().pipeline(place)


def test_a_pipeline_that_is_no_longer_there(place: CodeLocation) -> None:
    with pytest.raises(CodeMoved, match="no longer has a pipeline 'gone'"):
        made().pipeline(place.model_copy(update={"attribute": "gone"}))


def test_functions_of_the_users_module_travel_by_value(place: CodeLocation) -> None:
    from pyspark import cloudpickle

    code = made()
    code.pipeline(place)
    assert Path(place.file or "").stem in cloudpickle.list_registry_pickle_by_value()


def test_functions_of_a_module_that_a_task_imports_travel_by_value(place: CodeLocation) -> None:
    from pyspark import cloudpickle

    code = made()
    code.pipeline(place)
    top = Path(place.file or "").parent
    for name in ("late_alone", "late_package.inner"):
        file = top.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(exist_ok=True)
        if file.parent != top:
            (file.parent / "__init__.py").write_text("")
        file.write_text("FACTOR = 7\n\ndef times(n):\n    return n * FACTOR\n")
        pickled = cloudpickle.dumps(importlib.import_module(name).times)
        elsewhere = f"import pickle; print(pickle.loads({pickled!r})(6))"
        # Spark's workers have pyspark and nothing of the user's.
        done = subprocess.run([sys.executable, "-c", elsewhere], capture_output=True, text=True, check=False, cwd="/")
        assert (done.stdout, done.stderr) == ("42\n", "")


def test_a_task_may_load_a_module_that_has_no_name(place: CodeLocation) -> None:
    made().pipeline(place)
    Path(place.file or "").with_name("nameless.py").write_text("FACTOR = 7\n")
    spec = importlib.util.find_spec("nameless")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.FACTOR == 7


# archives

FLOW = """
from retrofill import Pipeline
from {top}.inner import NAME
import {beside}
flow = Pipeline(NAME + {beside}.NAME, schedule="@daily")

def lazily():
    import {top}.later, {loose}.part
    return {top}.later.NAME + {loose}.part.NAME
"""
Shipped = Callable[[str], CodeLocation]


@pytest.fixture
def shipped(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shipped]:
    """Returns a function that archives a flow whose files all contain a text. Imported modules are
    removed after the test.
    """
    own = re.sub(r"\W", "_", request.node.name)
    names = {name: f"{name}_{own}" for name in ("top", "beside", "loose")}
    store = FolderStore(tmp_path / "store")
    sys.modules.pop("flow", None)  # imported by another test
    before, path = set(sys.modules), list(sys.path)

    def ship(text: str) -> CodeLocation:
        folder = tmp_path / "flows"
        files = {f"{names['top']}/__init__.py": "", "flow.py": FLOW.format(**names)}
        for each in ("top/inner", "top/later", "beside", "loose/part"):
            name, _, rest = each.partition("/")
            files[f"{names[name]}{'/' if rest else ''}{rest}.py"] = f"NAME = {text!r}\n"
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        archive = build({name: folder / name for name in files}, 10_000)
        store.put(archive)
        file = str(folder / "flow.py")
        return CodeLocation(file=file, attribute="flow", sha256=archive.sha256, root=str(folder))

    yield ship
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    sys.path[:] = path


def from_store(tmp_path: Path) -> Code:
    settings = Settings(home=tmp_path / "home", code_store=tmp_path / "store")
    return Code(lambda sha256: unpacked(settings, sha256))


def lazily(code: Code, location: CodeLocation) -> Any:
    """The result of a function that imports when it is called, as a task may."""
    return code._modules[location.file or location.module or ""].lazily()


def test_an_archive_is_imported_once(shipped: Shipped, tmp_path: Path) -> None:
    one = shipped("one")
    code = from_store(tmp_path)
    assert code.pipeline(one) is code.pipeline(one)
    assert code.pipeline(one).name == lazily(code, one) == "oneone"


@pytest.mark.parametrize(("in_place", "text"), [(False, "one"), (True, "two")])
def test_an_archive_does_not_see_what_lies_where_it_was_applied(
    shipped: Shipped, tmp_path: Path, in_place: bool, text: str
) -> None:
    one = shipped("one")
    shipped("two")
    code = from_store(tmp_path)
    location = one.model_copy(update={"sha256": None, "root": None}) if in_place else one
    assert code.pipeline(location).name == text * 2
    assert lazily(code, location) == text * 2


def test_a_module_of_an_archive(shipped: Shipped, tmp_path: Path) -> None:
    location = shipped("one").model_copy(update={"file": None, "module": "flow"})
    assert from_store(tmp_path).pipeline(location).name == "oneone"


def test_a_module_that_the_driver_has_already_is_not_taken_for_the_archives(shipped: Shipped, tmp_path: Path) -> None:
    one = shipped("one").model_copy(update={"file": None, "module": "flow"})
    sys.modules["flow"] = sys.modules[__name__]
    with pytest.raises(CodeMoved, match=r"already has a module flow, in .*test_driver_code\.py: rename"):
        from_store(tmp_path).pipeline(one)
    del sys.modules["flow"]


def test_what_is_not_in_the_archive_is_not_looked_for_elsewhere(shipped: Shipped, tmp_path: Path) -> None:
    one = shipped("one")
    (tmp_path / "beside_all.py").write_text("flow = 1")
    with pytest.raises(CodeMoved, match=r"beside_all\.py is not in .*flows: apply it again"):
        from_store(tmp_path).pipeline(one.model_copy(update={"file": str(tmp_path / "beside_all.py")}))


def test_scripts_are_taken_from_the_archive_where_they_are_in_it(shipped: Shipped, tmp_path: Path) -> None:
    one = shipped("one")
    code, script = from_store(tmp_path), str(tmp_path / "flows" / "flow.py")
    assert code.script(one, script) == str(tmp_path / "home" / "code-cache" / str(one.sha256) / "flow.py")
    for elsewhere in ("s3://bucket/job.py", "/jobs/job.py"):
        assert code.script(one, elsewhere) == elsewhere
    (tmp_path / "flows" / "came_later.py").write_text("")
    with pytest.raises(CodeMoved, match=r"came_later\.py is not in the archive"):
        code.script(one, str(tmp_path / "flows" / "came_later.py"))
    # A path that leaves the folder is not in the archive, and the archive must not refer to it.
    out = f"{tmp_path}/flows/../came_later.py"
    assert code.script(one, out) == out
    with pytest.raises(CodeMoved):
        code.pipeline(one.model_copy(update={"file": out}))
    assert code.script(one.model_copy(update={"sha256": None, "root": None}), script) == script
