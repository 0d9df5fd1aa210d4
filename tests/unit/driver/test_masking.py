"""Secrets are masked before a text is truncated, and the truncation counts bytes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from retrofill.log import bound, configure, get_log
from retrofill.masking import configure_masking, masked
from retrofill.protocol.facts import MESSAGE_BYTES, TRACEBACK_BYTES, error_info
from retrofill_core.settings import WrongSetting, read_settings


@pytest.fixture(autouse=True)
def _only_built_in() -> Iterator[None]:
    yield
    configure_masking(())


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("connect postgresql://me:geheim@db:5432/x", "connect postgresql://me:***@db:5432/x"),
        ("s3://:geheim@bucket and jdbc:oracle://u:p%40w@h", "s3://:***@bucket and jdbc:oracle://u:***@h"),
        ("http://host:8080/path?at=a@b", "http://host:8080/path?at=a@b"),
        ("password=geheim, user=me", "password=***, user=me"),
        ("url?db_token=abc&x=1", "url?db_token=***&x=1"),
        ('AWS_SECRET_ACCESS_KEY = "a b" end', 'AWS_SECRET_ACCESS_KEY = "***" end'),
        ("{'password': 'geheim', \"api-key\": \"k\"}", "{'password': '***', \"api-key\": \"***\"}"),
        (
            "if password == other: pass; tokens = 5; tokenizer=bert",
            "if password == other: pass; tokens = 5; tokenizer=bert",
        ),
        ("unexpected token: ';'", "unexpected token: ';'"),
    ],
)
def test_what_is_masked_without_any_setting(text: str, safe: str) -> None:
    assert masked(text) == safe


def test_patterns_of_the_setting_mask_their_groups_or_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for given in (r'["card (\\d+)", "Mr\\. \\w+"]', "card (\\d+)\n\nMr\\. \\w+\n"):
        monkeypatch.setenv("RETROFILL_REDACT", given)
        configure_masking(read_settings().redact)
        assert masked("Mr. Smith, card 4711, password=x") == "***, card ***, password=***"


@pytest.mark.parametrize(("given", "why"), [("a(b", "not a valid regular expression"), ('["ok", "x*"]', "empty text")])
def test_a_pattern_that_cannot_be_used_is_refused_on_one_line(
    given: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETROFILL_REDACT", given)
    with pytest.raises(WrongSetting, match=why) as refused:
        read_settings()
    assert str(refused.value).startswith("the setting RETROFILL_REDACT is wrong: ")
    assert "\n" not in str(refused.value)


def test_a_secret_at_the_cut_does_not_leave_in_part_and_the_size_is_in_bytes() -> None:
    dsn = "postgresql://me:geheim@db"
    for long in ("ü" * (MESSAGE_BYTES // 2 - 10) + dsn, "x" * (MESSAGE_BYTES - 20) + dsn, dsn + "\n" + "ü" * 10**6):
        try:
            raise ValueError(long)
        except ValueError as e:
            fields = error_info(e)
        assert fields.traceback is not None
        for text, limit in ((fields.message, MESSAGE_BYTES), (fields.traceback, TRACEBACK_BYTES)):
            assert "gehe" not in text
            assert limit // 2 < len(text.encode()) <= limit


def test_the_drivers_own_log_is_masked(capfd: pytest.CaptureFixture[str]) -> None:
    root, own = logging.getLogger(), logging.getLogger("retrofill")
    handlers, level = root.handlers, root.level
    try:
        configure("INFO")
        with bound(run=7):
            get_log("a").bind(task="t").info("password=one", nested={"x": ["token=two"]}, n=3)
        logging.getLogger("b").warning("at %s", "amqp://u:three@h")
        get_log("c").info("read %s rows", 3, path=Path("/x"))
        get_log("c").debug("not shown")
        try:
            raise ValueError("token=four")
        except ValueError:
            get_log("d").exception("failed")
    finally:
        root.handlers = handlers
        root.setLevel(level)
        own.handlers, own.propagate = [], True
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["password=***", "at amqp://u:***@h", "read 3 rows", "failed"]
    assert (lines[0]["nested"], lines[0]["n"]) == ({"x": ["token=***"]}, 3)
    assert [(line["logger"], line["level"]) for line in lines] == [
        ("a", "info"), ("b", "warning"), ("c", "info"), ("d", "error"),
    ]  # fmt: skip
    assert [(line.get("run"), line.get("task")) for line in lines] == [(7, "t"), *[(None, None)] * 3]
    assert "/x" in lines[2]["path"]
    assert lines[3]["exception"].endswith("ValueError: token=***")
