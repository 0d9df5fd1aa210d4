"""``open`` prints the address of a page, and ``down --delete`` deletes what a stack has written and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.terminal import Cli

from retrofill_tools.stack.layout import OWN, Layout


@pytest.mark.parametrize(
    ("url", "words", "address"),
    [
        ("http://127.0.0.1:18470/", [], "http://127.0.0.1:18470/"),
        ("http://127.0.0.1:18470/", ["fix"], "http://127.0.0.1:18470/backfills/fix"),
        ("https://example.com/retrofill", ["fix"], "https://example.com/retrofill/backfills/fix"),
        ("http://h/", ["a/b c#ü?"], "http://h/backfills/a%2Fb%20c%23%C3%BC%3F"),
    ],
)
@pytest.mark.usefixtures("nowhere")
def test_a_page_has_an_address(
    url: str, words: list[str], address: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RETROFILL_CONSOLE_URL", url)
    assert cli("open", *words).out == f"{address}\n"
    assert cli("open", *words, "--json").document == {"url": address}


@pytest.mark.usefixtures("nowhere")
def test_without_a_console_it_is_said_what_to_set(cli: Cli) -> None:
    refused = cli("open")
    assert (refused.status, refused.out, refused.err.count("\n")) == (1, "", 1)
    assert "RETROFILL_CONSOLE_URL" in refused.err


@pytest.mark.parametrize("others", [[], ["sales.py", "notes/a.txt"]])
def test_only_what_a_stack_has_written_is_deleted(others: list[str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    for name in OWN:
        file = home / name / "below" / "file" if "." not in name else home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (home / "code-cache" / "below").chmod(0o500)
    (home / "elsewhere").symlink_to(tmp_path)
    (home / "logs" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    for name in others:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    Layout(home).delete()
    assert sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()) == sorted(others)
    assert (tmp_path / "kept").is_dir()
    (home / "elsewhere").unlink()
    Layout(home).delete()
    assert home.exists() == bool(others)
