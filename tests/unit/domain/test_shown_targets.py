"""Of a webhook's address, people and logs see the host only: the rest may be a secret."""

from __future__ import annotations

import pytest

from retrofill_core.domain.callback import shown


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://hooks.slack.com/services/T0/B0/secret", "https://hooks.slack.com/***"),
        ("https://example.org:8443/hook?token=secret", "https://example.org:8443/***"),
        ("https://example.org?token=secret", "https://example.org/***"),
        ("https://example.org/#secret", "https://example.org/***"),
        ("http://[2001:db8::1]:80/secret", "http://[2001:db8::1]:80/***"),
        ("https://user:secret@example.org/", "https://example.org"),
        ("https://bücher.example/secret", "https://bücher.example/***"),
        ("https://example.org", "https://example.org"),
        ("https://example.org/", "https://example.org"),
    ],
)
def test_an_address_is_shown_by_its_host(url: str, expected: str) -> None:
    assert shown("webhook", url) == expected


@pytest.mark.parametrize("kind", ["function", "topic"])
def test_other_names_are_shown_whole(kind: str) -> None:
    assert shown(kind, "ops.alerts/x") == "ops.alerts/x"
