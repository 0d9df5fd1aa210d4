"""The files that a browser loads: small, complete, and nothing from elsewhere."""

from __future__ import annotations

import gzip
import re

from tests.console.browser import STATIC

BUNDLE_BYTES = 150_000
TEXTS = {".js", ".css", ".html", ".svg"}


def test_the_bundle_is_small() -> None:
    sent = [path for path in STATIC.rglob("*") if path.is_file() and not path.name.startswith("LICENSE")]
    assert sum(len(gzip.compress(path.read_bytes())) for path in sent) <= BUNDLE_BYTES


def test_nothing_is_inline_and_nothing_is_from_elsewhere() -> None:
    """The content security policy would block it, in the browser of a user."""
    for path in STATIC.rglob("*"):
        if path.suffix not in TEXTS or "vendor" in path.parts:
            continue
        text = path.read_text()
        assert not re.search(r"(src|href|url|import|from)\W{1,4}https?://", text), path
        assert not re.search(r"\sstyle=\"|<style|\son[a-z]+=\"|javascript:|dangerouslySetInnerHTML|innerHTML", text), (
            path
        )


def test_every_import_is_there() -> None:
    for path in STATIC.rglob("*.js"):
        if "vendor" in path.parts:
            continue
        for wanted in re.findall(r'from "(\.[^"]+)"', path.read_text()):
            assert (path.parent / wanted).is_file(), f"{path} imports {wanted}"


def test_what_is_from_others_has_its_license() -> None:
    licenses = (STATIC / "vendor" / "LICENSES.txt").read_text()
    for path in (STATIC / "vendor").iterdir():
        assert path.name == "LICENSES.txt" or path.name in licenses, path.name
