"""The previous release's schema and code, for tests in which two releases share one database."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from retrofill_core.store.engine import make_engine
from retrofill_tools.admin.database import prepare_database
from tests.support.installation import ROOT, Installation, path_of

# A release that works with schemas up to 0010, and its own schema.
BEFORE = "9fe1653b83b0cf3bb552f591afbe7824f1ac0dd3"
REVISION_BEFORE = "0003"


def tree_before(folder: Path) -> Path:
    """Extract the previous release into ``folder``. Skips the test if git does not have it."""
    packed = subprocess.run(
        ["git", "archive", BEFORE, "shared", "services", "tests"], cwd=ROOT, capture_output=True, check=False
    )
    if packed.returncode != 0:
        pytest.skip(f"git's history is not here: {packed.stderr.decode().splitlines()[:1]}")
    subprocess.run(["tar", "-x"], cwd=folder, input=packed.stdout, check=True)
    return folder


def at_schema_before(made: Installation) -> None:
    """Recreate the installation's database with the previous release's schema."""
    dropped(made)
    prepare_database(made.settings, REVISION_BEFORE)
    assert schema_of(made) == REVISION_BEFORE


def dropped(made: Installation) -> None:
    """Return the installation to its state before the first ``init``, except for its topics."""
    engine = make_engine(made.settings.dsn_of("owner"), "test")
    with engine.begin() as conn:
        conn.exec_driver_sql("DROP SCHEMA retrofill CASCADE")
    engine.dispose()


def schema_of(made: Installation) -> str:
    """The version of the installation's schema."""
    return str(made.value("SELECT version_num FROM alembic_version"))


def command(made: Installation, *arguments: str, tree: Path = ROOT, **environment: str) -> subprocess.Popen[str]:
    """Start a CLI command of the release in ``tree``."""
    # The release before has it in another package.
    cli = "retrofill_tools.cli" if (tree / "shared" / "retrofill_tools").exists() else "retrofill.cli"
    return subprocess.Popen(
        [sys.executable, "-c", f"from {cli}.main import run; run()", *arguments],
        cwd=tree,
        env={**os.environ, **made.environment(), **path_of(tree), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a command's end. Returns its status and stderr."""
    _, err = process.communicate(timeout=120)
    return process.returncode, err
