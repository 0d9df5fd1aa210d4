"""``python -m tests.matrix``: the flights with each Spark and Python that can be had here, into docs/versions.md.

Each pair gets an environment from its lock, with pyspark and nothing of Retrofill. Pythons are looked for
in the PATH as python3.x, and in pyenv's folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from tests.support import pages

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "versions.md"
MARKERS = "<!-- table -->", "<!-- end of table -->"
# Minor versions of the Pythons that pyspark's own classifiers name.
SPARKS = {"3.5": (8, 11), "4.0": (9, 13), "4.1": (10, 14), "4.2": (10, 14), "4.3": (11, 14)}
WAYS = {"spark-submit": "spark-submit", "pool": "Connect"}


@dataclass(frozen=True)
class Pair:
    """A version of Spark, and an interpreter."""

    spark: str
    minor: int
    program: str

    @property
    def name(self) -> str:
        return f"Spark {self.spark}, Python 3.{self.minor}"


def pairs(every: bool) -> Iterator[Pair]:
    """Each Spark with the oldest and the newest Python that it supports and that is here, or with every one."""
    for spark, (first, last) in SPARKS.items():
        found = [Pair(spark, minor, program) for minor in range(first, last + 1) if (program := _python(minor))]
        yield from found if every else dict.fromkeys([*found[:1], *found[-1:]])


def _python(minor: int) -> str | None:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [*map(str, pyenv.glob(f"3.{minor}.*/bin/python")), shutil.which(f"python3.{minor}")]
    for each in filter(None, candidates):
        # A shim of pyenv may be there for a Python that is not.
        check = [each, "-c", f"import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, {minor}))"]
        if subprocess.run(check, capture_output=True, check=False).returncode == 0:
            return each
    return None


def make(pair: Pair, folder: Path) -> str:
    """An environment from the lock; returns its interpreter. Raises ``CalledProcessError``."""
    subprocess.run([pair.program, "-m", "venv", folder], check=True)
    python = str(folder / "bin" / "python")
    install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes")
    subprocess.run([*install, "-r", HERE / f"spark-{pair.spark}.lock"], check=True)
    return python


def run(pair: Pair) -> tuple[dict[str, str], list[str]]:
    """The outcome of each way, and the exact versions of Spark and Python."""
    with tempfile.TemporaryDirectory(prefix="retrofill-matrix-") as folder:
        try:
            python = make(pair, Path(folder, "environment"))
        except subprocess.CalledProcessError as e:
            return dict.fromkeys(WAYS, f"not installed: exit status {e.returncode}"), [pair.spark, f"3.{pair.minor}"]
        report = Path(folder, "report.xml")
        environment = {**os.environ, "RETROFILL_TEST_PYTHON": python}
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--long", "--junitxml", report, HERE],
            cwd=ROOT,
            env=environment,
            check=False,
        )
        say = "import platform, pyspark; print(pyspark.__version__, platform.python_version())"
        versions = subprocess.run([python, "-c", say], capture_output=True, text=True, check=True).stdout.split()
        return {way: _outcome(report, way) for way in WAYS}, versions


def _outcome(report: Path, way: str) -> str:
    cases = [case for case in ElementTree.parse(report).iter("testcase") if case.attrib["name"].endswith(f"[{way}]")]
    if not cases:
        return "not run"
    bad = [case for case in cases if any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))]
    return "failed" if bad else "passed"


def main() -> int:
    """Run pairs and write their rows. The exit status is 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--every", action="store_true", help="every Python that is here, not the oldest and the newest")
    parser.add_argument("--missing", action="store_true", help="every one that the page has no row of")
    parser.add_argument("--spark", help="this version only")
    given = parser.parse_args()
    rows = rows_of(PAGE.read_text()) if given.missing or given.spark else {}
    chosen = [
        pair
        for pair in pairs(given.every or given.missing)
        if given.spark in (None, pair.spark) and not (given.missing and pair.name in rows)
    ]
    if not chosen:
        print("matrix: there is no such pair of Spark and Python here that is to be run", file=sys.stderr)  # noqa: T201
        return 1
    passed = True
    for pair in chosen:
        began = time.monotonic()
        outcomes, versions = run(pair)
        passed = passed and set(outcomes.values()) == {"passed"}
        rows[pair.name] = [*versions, *outcomes.values(), f"{datetime.now(UTC):%Y-%m-%d}", _commit()]
        PAGE.write_text(written(PAGE.read_text(), rows))
        print(f"matrix: {pair.name}: {outcomes} ({time.monotonic() - began:.0f} s)", flush=True)  # noqa: T201 - progress
    return 0 if passed else 1


def rows_of(page: str) -> dict[str, list[str]]:
    """The rows of the page, by their pairs."""
    lines = pages.parted(page, *MARKERS)[1].strip().splitlines()[2:]
    return {f"Spark {_minor(row[0])}, Python {_minor(row[1])}": row for row in map(pages.cells, lines)}


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def written(page: str, rows: dict[str, list[str]]) -> str:
    """The page with these rows, in order."""
    heads = ["Spark", "Python", *WAYS.values(), "run on", "at commit"]
    ordered = sorted(rows.values(), key=lambda row: [int(n) for n in f"{row[0]}.{row[1]}".split(".")])
    return pages.rewritten(page, *MARKERS, pages.table(heads, ordered))


def _commit() -> str:
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
