"""The ``retrofill`` commands in the documentation."""

from __future__ import annotations

import re
import shlex

from tests.support.installation import ROOT

WITHOUT_BLOCKS = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "deploy/helm/README.md")]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "deploy" / "README.md"]
SHOWN = re.compile(r"^(?: {4}| {8})(?:[A-Z_]+=\S+ |[A-Z_]+='[^']*' )*(retrofill [a-z-]+.*?)(?: +#.*)?$", re.MULTILINE)
# In a block of shell, a crontab or a workflow there may be several in a line, which a backslash continues.
BLOCK = re.compile(r"^ *```(?:sh|crontab|yaml)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
IN_BLOCK = re.compile(r"(?<![/\w-])retrofill [a-z-]+ (?:\\\n|[^&|\n])*")
INLINE = re.compile(r"`(retrofill [a-z-][^`]*)`")
# Values for the pages' placeholders.
STANDS_FOR = {"ID": "42", "NAME": "run-starter", "FILE": "orders.py", "PLACE": "2:0", "…": ""}


def shown() -> list[tuple[str, str]]:
    """Each command with its page."""
    found = []
    for page in PAGES:
        text = page.read_text()
        commands = SHOWN.findall(BLOCK.sub("", text))
        commands += [each for block in BLOCK.findall(text) for each in IN_BLOCK.findall(block)]
        found += [(str(page.relative_to(ROOT)), each.replace("\\\n", " ").strip()) for each in commands]
    return found


def mentioned() -> list[tuple[str, str]]:
    """Each command in a sentence, often without its arguments, with its page."""
    return [(page.name, command) for page in PAGES + WITHOUT_BLOCKS for command in INLINE.findall(page.read_text())]


def words_of(command: str) -> list[str]:
    """The command's arguments, with placeholders replaced."""
    words = [STANDS_FOR.get(word, word) for word in shlex.split(command)[1:]]
    return [word for word in words if word]
