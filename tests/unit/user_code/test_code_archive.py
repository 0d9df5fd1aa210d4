"""The archive of a pipeline's code: which files it contains, and that equal files yield equal
bytes.
"""

from __future__ import annotations

import io
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.definitions import daily

from retrofill.user_code.loading import root_of
from retrofill_core.domain.pipeline import CodeLocation, PipelineDefinition, SubmitScript, TaskDefinition
from retrofill_core.user_code.archive import DATA_MAX_BYTES, Archive, CannotArchive, archive_of, build, files_of
from retrofill_core.user_code.source import Source

MUCH = 10**9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pipeline's folder with all kinds of neighboring files."""
    texts = {
        "flow.py": "import helper",
        "helper.py": "",
        "rules.sql": "SELECT 1",
        "picture.png": "no data of ours",
        "large.csv": "x" * (DATA_MAX_BYTES + 1),
        ".env": "SECRET=1",
        "package/__init__.py": "",
        "package/inner/deep.py": "",
        "package/inner/deep.json": "{}",
        "package/__pycache__/x.py": "",
        "package/old.pyc": "",
        "package/data/only.csv": "1",
        "other/script.py": "",
        ".hidden/__init__.py": "",
        "venv/__init__.py": "",
        "venv/pyvenv.cfg": "",
    }
    write(tmp_path / "flows", texts)
    return tmp_path / "flows"


def write(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def script(path: Path) -> TaskDefinition:
    return TaskDefinition(name=path.stem, kind="submit", submit=SubmitScript(script=str(path)))


def definition(folder: Path, *tasks: TaskDefinition, **code: str) -> PipelineDefinition:
    location = CodeLocation(**(code or {"file": str(folder / "flow.py")}), attribute="p")
    return daily().model_copy(update={"code": location, "tasks": tasks})


def source(folder: Path, *tasks: TaskDefinition, **code: str) -> Source:
    """What was imported is that of this process."""
    found = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    made = definition(folder, *tasks, **code)
    return Source([made], root_of(made.code.file, made.code.module), found)


def names(folder: Path, *include: Path) -> list[str]:
    return sorted(files_of(folder, source(folder), include))


OWN = ["flow.py", "helper.py", "package/__init__.py", "package/inner/deep.json", "package/inner/deep.py", "rules.sql"]


def test_of_a_file_its_folder_with_packages_and_small_data(folder: Path) -> None:
    assert names(folder) == OWN


def test_a_script_of_a_task_goes_along_where_it_is_inside(folder: Path) -> None:
    (folder.parent / "elsewhere.py").write_text("")
    tasks = (script(folder / "other/script.py"), script(folder.parent / "elsewhere.py"))
    assert sorted(files_of(folder, source(folder, *tasks))) == sorted([*OWN, "other/script.py"])


def test_the_files_of_a_script_go_along_where_they_are_inside(folder: Path) -> None:
    for name in ("lib/deep.zip", "lib/x.jar", "lib/rules.bin"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"")
    submit = SubmitScript(
        script="s3a://jobs/x.py",
        py_files=(str(folder / "lib/deep.zip"),),
        jars=(str(folder / "lib/x.jar"), "/opt/y.jar"),
        files=(str(folder / "lib/rules.bin"),),
    )
    task = TaskDefinition(name="a", kind="submit", submit=submit)
    more = ["lib/deep.zip", "lib/rules.bin", "lib/x.jar"]
    assert sorted(files_of(folder, source(folder, task))) == sorted([*OWN, *more])


def test_folders_without_init_go_along_if_the_code_imports_them(folder: Path) -> None:
    """Also where a function does, and one of another that goes along; nothing else of the folder does."""
    texts = {
        "flow.py": "def f():\n    from common.io import read",
        "common/io/read.py": "import deeper.x",
        "common/rules.yaml": "{}",
        "deeper/x.py": "from . import unrelated",
        "package/inner/deep.py": "import of_package",
        "of_package/y.py": "",
        "unrelated/z.py": "",
    }
    write(folder, texts)
    more = ["common/io/read.py", "deeper/x.py", "of_package/y.py"]
    assert [each for each in names(folder) if each not in OWN and each != "common/rules.yaml"] == more


def test_what_is_beside_a_script_goes_along_as_beside_a_pipeline(folder: Path) -> None:
    texts = {
        "jobs/report.py": "import helpers.dates, util",
        "jobs/util.py": "",
        "jobs/config.yaml": "a: 1",
        "jobs/helpers/dates.py": "",
        "jobs/unrelated/x.py": "",
        "jobs/lib/__init__.py": "",
    }
    write(folder, texts)
    expected = [each for each in texts if "unrelated" not in each]
    assert sorted(files_of(folder, source(folder, script(folder / "jobs/report.py")))) == sorted([*OWN, *expected])


def test_what_a_script_imports_from_above_it_goes_along(folder: Path) -> None:
    texts = {
        "flows/daily/report.py": "import sys\nsys.path.insert(0, '..')\nfrom common.io import read\nimport of_flows, names",
        "flows/of_flows.py": "",
        "flows/unrelated.py": "",
        "common/io.py": "import deeper.x\nimport later",
        "common/schema.json": "{}",
        "deeper/x.py": "",
        "flows/later.py": "",
        "unrelated/x.py": "",
    }
    write(folder, texts)
    expected = [each for each in texts if "unrelated" not in each and "later" not in each]
    found = files_of(folder, source(folder, script(folder / "flows/daily/report.py")))
    assert sorted(found) == sorted([*OWN, *expected])


def test_files_of_each_interval_directories_and_the_working_directory_go_along(folder: Path) -> None:
    texts = (
        "rules/2013-01.bin",
        "rules/2013-02.bin",
        "rules/README",
        "dbt/models/m.sql",
        "dbt/x.bin",
        "work/conf/job.yaml",
        "work/x.bin",
    )
    write(folder, dict.fromkeys(texts, ""))
    paths = (f"{folder}/rules/{{interval.start:%Y-%m}}.bin#rules", f"{folder}/dbt")
    tasks = (
        TaskDefinition(name="a", kind="command", submit=SubmitScript(script="dbt", files=paths)),
        TaskDefinition(name="b", kind="command", submit=SubmitScript(script="dbt", cwd=str(folder / "work"))),
    )
    expected = [each for each in texts if each not in ("rules/README", "work/x.bin")]
    assert sorted(files_of(folder, source(folder, *tasks))) == sorted([*OWN, *expected])


def test_programs_stay_programs(folder: Path) -> None:
    (folder / "load.sh").write_text("#!/bin/sh")
    archive = build({"load.sh": folder / "load.sh", "flow.py": folder / "flow.py"}, MUCH)
    with zipfile.ZipFile(io.BytesIO(archive.content)) as zipped:
        modes = {entry.filename: entry.external_attr >> 16 for entry in zipped.infolist()}
    assert modes == {"flow.py": 0o644, "load.sh": 0o755}


def test_what_was_imported_goes_along_in_a_package_or_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    __import__("other.script")
    try:
        assert names(folder) == sorted([*OWN, "other/script.py"])
    finally:
        del sys.modules["other.script"], sys.modules["other"]


def test_of_a_module_its_package_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    __import__("package.inner.deep")
    try:
        found = source(folder, module="package.inner.deep")
        archive = archive_of(found, [], MUCH)
    finally:
        for name in ("package.inner.deep", "package.inner", "package"):
            del sys.modules[name]
    assert archive is not None
    assert found.root == folder
    assert zipfile.ZipFile(io.BytesIO(archive.content)).namelist() == [
        "package/__init__.py",
        "package/inner/deep.json",
        "package/inner/deep.py",
    ]


def test_a_module_of_an_installed_package_is_not_shipped(folder: Path) -> None:
    assert archive_of(source(folder, module="pytest"), [], MUCH) is None


def test_included_files_and_folders(folder: Path) -> None:
    aside = folder.parent / "common"
    (aside / "deep").mkdir(parents=True)
    (aside / "deep" / "table.bin").write_bytes(b"\0")
    more = names(folder, aside, folder / "picture.png", folder / "package/data")
    assert sorted(set(more) - set(OWN)) == ["common/deep/table.bin", "package/data/only.csv", "picture.png"]


def test_two_included_under_one_name(folder: Path) -> None:
    (folder.parent / "helper.py").write_text("")
    with pytest.raises(CannotArchive, match=r"the archive already has another helper\.py"):
        names(folder, folder.parent / "helper.py")
    assert names(folder, folder / "helper.py") == OWN


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("../shared/x.sql", "x.sql"),
        ("../common/lib", "lib/m.py"),
        ("package/../picture.png", "picture.png"),
        ("../flows/picture.png", "picture.png"),
        ("link/../shared/x.sql", "x.sql"),
    ],
)
def test_an_included_one_is_where_it_would_be_by_its_whole_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch, given: str, name: str
) -> None:
    for each in ("shared/x.sql", "common/lib/m.py"):
        (folder.parent / each).parent.mkdir(parents=True)
        (folder.parent / each).write_text("")
    # As the system does: not the directory of the link, but that of where it leads.
    (folder / "link").symlink_to(folder.parent / "common")
    monkeypatch.chdir(folder)
    assert set(names(folder, Path(given))) - set(OWN) == {name}


def test_an_included_folder_does_not_hide_one_of_the_same_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (folder / "common", folder.parent / "common"):
        each.mkdir()
        (each / "__init__.py").write_text("")
    monkeypatch.chdir(folder)
    with pytest.raises(CannotArchive, match=r"the archive already has another common/__init__\.py"):
        names(folder, Path("../common"))


def test_a_file_and_a_folder_of_the_same_name_are_told(folder: Path) -> None:
    """They could be unpacked nowhere."""
    (folder.parent / "a").mkdir()
    (folder.parent / "a" / "conf").write_text("")
    (folder.parent / "b" / "conf").mkdir(parents=True)
    (folder.parent / "b" / "conf" / "x.ini").write_text("")
    with pytest.raises(
        CannotArchive, match=r"the archive would have both a file conf and a directory conf: rename one"
    ):
        names(folder, folder.parent / "a" / "conf", folder.parent / "b" / "conf")


def test_a_name_that_is_not_utf8_is_told(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/donn\xe9es.csv")).write_text("")
    with pytest.raises(CannotArchive, match=r"'donn\\udce9es\.csv' in .*: its name is not UTF-8: rename it"):
        names(folder)


def test_an_included_one_that_is_not_there(folder: Path) -> None:
    with pytest.raises(CannotArchive, match=r"--include .*nothing: no such file or directory"):
        names(folder, folder / "nothing")


def built(folder: Path, **more: Path) -> Archive:
    return build({name: folder / name for name in OWN} | more, MUCH)


def test_the_same_files_make_the_same_bytes(folder: Path) -> None:
    first = built(folder)
    for n, name in enumerate(reversed(OWN)):
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        (folder / name).write_bytes(content)
        os.utime(folder / name, (10_000 * n, 10_000 * n))
        (folder / name).chmod(0o700 if n % 2 else 0o644)
    again = build({name: folder / name for name in reversed(OWN)}, MUCH)
    assert again.content == first.content
    # Pinned: code that one release applied keeps its hash under the next release.
    assert first.sha256 == "02c4c0107f00df992c1fae963e298a2044e01ae0c4a543a9dc2463840c9fc13d"


def test_another_content_or_name_is_another_archive(folder: Path) -> None:
    first = built(folder)
    assert built(folder, **{"copy.py": folder / "helper.py"}).sha256 != first.sha256
    (folder / "helper.py").write_text(" ")
    assert built(folder).sha256 != first.sha256


def test_too_much_names_the_largest(folder: Path) -> None:
    (folder / "helper.py").write_text("#" * 1000)
    with pytest.raises(CannotArchive) as raised:
        build({name: folder / name for name in OWN}, 1000)
    assert str(raised.value).startswith("the code has 1,023 bytes, more than RETROFILL_CODE_MAX_BYTES (1,000); ")
    assert "the largest file is helper.py (1,000)" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_gone_meanwhile(folder: Path) -> None:
    with pytest.raises(CannotArchive, match=r"gone\.py cannot be read: No such file or directory"):
        built(folder, gone=folder / "gone.py")
