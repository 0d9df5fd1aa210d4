"""AsyncAPI's own JSON Schema of its documents, from its authors' npm package. Cached after the
first download.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest

PACKAGE = "@asyncapi/specs@6.11.1"
MEMBER = "package/schemas/3.0.0-without-$id.json"
SHA256 = "abe96881dbfaad495ccbb6bd8d3fb43ca18a13b9d7564849ccb66f39d5e5b20f"
NPM_SECONDS = 120


def official_schema() -> dict[str, Any]:
    """The schema (draft 07) of AsyncAPI 3.0.0 documents. Skips the test if the download fails."""
    folder = Path(os.environ.get("RETROFILL_CACHE") or Path.home() / ".cache" / "retrofill")
    kept = folder / f"asyncapi-3.0.0-{SHA256[:12]}.json"
    if not kept.exists():
        content = _from_npm()
        folder.mkdir(parents=True, exist_ok=True)
        draft = kept.with_suffix(f".{os.getpid()}.tmp")
        draft.write_bytes(content)
        draft.replace(kept)
    content = kept.read_bytes()
    assert hashlib.sha256(content).hexdigest() == SHA256, f"{kept} is not what {PACKAGE} had: delete it"
    schema: dict[str, Any] = json.loads(content)
    return schema


def _from_npm() -> bytes:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed: AsyncAPI's own schema is not here")
    with tempfile.TemporaryDirectory(prefix="retrofill-npm-") as folder:
        done = subprocess.run(
            [npm, "pack", PACKAGE, "--silent"], cwd=folder, capture_output=True, text=True, timeout=NPM_SECONDS
        )
        if done.returncode != 0:
            pytest.skip(f"npm did not bring {PACKAGE}: {done.stderr.strip()[-200:]}")
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as packed:
            member = packed.extractfile(MEMBER)
            assert member is not None
            return member.read()
