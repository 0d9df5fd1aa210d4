"""A next release, whose schema and code are this one's and a bit more, for tests in which two releases share one database."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from retrofill_core.store.tables import REVISION
from tests.support.installation import ROOT, Installation, path_of

REVISION_AFTER = f"{int(REVISION) + 1:04}"
# It adds to a table that services write all the time.
_ADDS = "ALTER TABLE retrofill.backfill ADD COLUMN added_by_the_next_release TEXT"
_MIGRATION = f'''"""A column more."""

from alembic import op

revision = "{REVISION_AFTER}"
down_revision = "{REVISION}"


def upgrade() -> None:
    """Add it."""
    op.execute("{_ADDS}")
'''


def next_release(folder: Path) -> Path:
    """The next release's code, in ``folder``."""
    for part in ("shared", "services", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    store = folder / "shared" / "retrofill_core" / "store"
    (store / "migrations" / "versions" / f"v{REVISION_AFTER}_next.py").write_text(_MIGRATION)
    tables = store / "tables" / "backfills.py"
    before = f'REVISION = "{REVISION}"'
    text = tables.read_text()
    assert before in text
    tables.write_text(text.replace(before, f'REVISION = "{REVISION_AFTER}"'))
    return folder


def schema_of(made: Installation) -> str:
    """The version of the installation's schema."""
    return str(made.value("SELECT version_num FROM alembic_version"))


def command(made: Installation, *arguments: str, tree: Path = ROOT, **environment: str) -> subprocess.Popen[str]:
    """Start a CLI command of the release in ``tree``."""
    return subprocess.Popen(
        [sys.executable, "-c", "from retrofill_tools.cli.main import run; run()", *arguments],
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
