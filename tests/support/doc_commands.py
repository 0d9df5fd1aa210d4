"""The ``retrofill`` commands in the documentation."""

from __future__ import annotations

import re
import shlex

from tests.support.installation import ROOT

WITHOUT_BLOCKS = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "deploy/helm/README.md")]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "deploy" / "README.md"]
SHOWN = re.compile(r"^ {4}(?:[A-Z_]+=\S+ |[A-Z_]+='[^']*' )*(retrofill [a-z-]+.*?)(?: +#.*)?$", re.MULTILINE)
INLINE = re.compile(r"`(retrofill [a-z-][^`]*)`")
# Values for the pages' placeholders.
STANDS_FOR = {"ID": "42", "NAME": "run-starter", "FILE": "orders.py", "PLACE": "2:0", "…": ""}


def shown() -> list[tuple[str, str]]:
    """Each command with its page."""
    return [(page.name, command) for page in PAGES for command in SHOWN.findall(page.read_text())]


def mentioned() -> list[tuple[str, str]]:
    """Each command in a sentence, often without its arguments, with its page."""
    return [(page.name, command) for page in PAGES + WITHOUT_BLOCKS for command in INLINE.findall(page.read_text())]


def words_of(command: str) -> list[str]:
    """The command's arguments, with placeholders replaced."""
    words = [STANDS_FOR.get(word, word) for word in shlex.split(command)[1:]]
    return [word for word in words if word]
