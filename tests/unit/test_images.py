"""The programs in the images of deploy/Dockerfile, and the demo, need no package but those that their lock installs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "deploy" / "requirements"
PINNED = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)
OWN = (
    "retrofill",
    "retrofill_core",
    "retrofill_tools",
    "retrofill_client",
    "backfill_planner",
    "callback_runner",
    "deadline_watcher",
    "retrofill_console",
    "run_starter",
)
# Imports the arguments after the dash, modules or scripts, and refuses the packages that are named before it. With a colon,
# it calls the module's function.
IMPORT = """
import importlib, runpy, sys
dash = sys.argv.index("-")
for name in sys.argv[1:dash]:
    sys.modules[name] = None  # which makes its import an ImportError
for wanted in sys.argv[dash + 1 :]:
    if wanted.endswith(".py"):
        runpy.run_path(wanted, run_name="image")
        continue
    module, _, function = wanted.partition(":")
    made = importlib.import_module(module)
    getattr(made, function)() if function else None
"""


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        (
            "services",
            [
                "backfill_planner.__main__",
                "deadline_watcher.__main__",
                "callback_runner.__main__",
                "retrofill_console.__main__",
            ],
        ),
        (
            "../../requirements-demo",
            [
                "run_starter.__main__",
                "retrofill_console.__main__",
                "retrofill_tools.stack.stack",
                "retrofill_tools.cli.main:command_line",
                "pyspark.sql.connect.session",
                "examples/flights/prepare.py",
            ],
        ),
        ("spark", ["run_starter.__main__", "retrofill_tools.cli.main:command_line", "deploy/spark.py"]),
    ],
)
def test_they_start_with_what_their_lock_installs(lock: str, wanted: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, *absent(LOCKS / f"{lock}.lock"), "-", *wanted],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_demo_has_the_versions_of_all_others() -> None:
    pins, all_pins = (
        dict(PINNED.findall((ROOT / f"{name}.lock").read_text())) for name in ("requirements-demo", "requirements")
    )
    assert len(pins) > 40
    assert pins.items() <= all_pins.items()


def absent(lock: Path) -> list[str]:
    """The packages that can be imported here, and not where only ``lock`` is installed."""
    names = {_plain(name) for name, _ in PINNED.findall(lock.read_text())}
    return sorted(
        package
        for package, brought_by in packages_distributions().items()
        if package not in OWN and not names & {_plain(name) for name in brought_by}
    )


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
