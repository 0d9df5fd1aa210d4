"""The webhook request, and how its response is interpreted."""

import base64
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from pydantic import SecretStr, ValidationError
from standardwebhooks import Webhook

from callback_runner.decide import Impossible, Raised, Returned
from callback_runner.record import Claim
from callback_runner.sender import Answer
from callback_runner.webhooks import MAX_RETRY_SECONDS, body_of, headers_of, outcome_of, retry_after
from retrofill_core.settings import Settings

NOW = datetime(2024, 3, 1, 12, tzinfo=UTC)
KEYS = [SecretStr("whsec_" + base64.b64encode(letter * 24).decode()) for letter in (b"n", b"o")]


def claim(**more):
    given = {
        "deadline_id": 5,
        "shard": 0,
        "name": "https://example.org/hook?a=b.c",
        "kind": "webhook",
        "pipeline": "p",
        "options": {},
        "kwargs": {"team": "data"},
        "event": {"type": "DeadlineMissed", "alert": "late", "detected_at": "2024-03-01T11:59:00Z"},
        "attempts": 1,
        "runners_lost": 0,
        "token": "t",
        "off_since": None,
        "due_at": datetime(2024, 3, 1, 12, tzinfo=UTC),
        **more,
    }
    return Claim(**given)


def test_the_payload_is_the_same_for_every_try():
    assert body_of(claim(attempts=1)) == body_of(claim(attempts=2))
    assert json.loads(body_of(claim())) == {
        "type": "DeadlineMissed",
        "timestamp": "2024-03-01T11:59:00+00:00",
        "data": {**claim().event, "deadline_id": 5, "kwargs": {"team": "data"}},
    }


def test_the_id_is_the_idempotency_key_of_one_installation():
    id = claim(attempts=1).message_id("here")
    assert id == claim(attempts=2, token="u").message_id("here")
    assert len({id, claim().message_id("there"), claim(deadline_id=6).message_id("here")}) == 3
    # The signature separates its parts with full stops.
    assert id.replace("-", "").isalnum()
    assert id.startswith("5-")


def test_every_key_verifies():
    now = datetime.now(UTC)
    headers = headers_of("5-abc", '{"a": "ä"}', KEYS, now)
    assert len(headers["webhook-signature"].split(" ")) == 2
    for key in KEYS:
        assert Webhook(key.get_secret_value()).verify('{"a": "ä"}'.encode(), headers) == {"a": "ä"}


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_success(status):
    assert outcome_of(Answer(status, {}, b""), NOW) == Returned()


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 404, 429, 500, 503, 999])
def test_everything_else_is_a_certain_failure(status):
    outcome = outcome_of(Answer(status, {}, b"x" * 2000), NOW)
    assert isinstance(outcome, Raised)
    assert not outcome.uncertain
    assert str(status) in outcome.error
    assert len(outcome.error) < 600


@pytest.mark.parametrize("status", [302, 400, 401, 404, 422])
def test_an_answer_that_more_patience_does_not_change_is_a_refusal(status: int) -> None:
    outcome = outcome_of(Answer(status, {}, b""), NOW)
    assert isinstance(outcome, Raised) and outcome.refused


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_a_receiver_in_trouble_is_worth_patience(status: int) -> None:
    outcome = outcome_of(Answer(status, {}, b""), NOW)
    assert isinstance(outcome, Raised) and not outcome.refused


def test_gone():
    assert outcome_of(Answer(410, {}, b"moved out"), NOW) == Impossible("the webhook answered 410 Gone: moved out")


def in_seconds(seconds):
    return format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0),
        ("", 0),
        ("0", 0),
        (" 120 ", 120),
        ("999999999999999999999", MAX_RETRY_SECONDS),
        ("3601", MAX_RETRY_SECONDS),
        ("-5", 0),
        ("1.5", 0),
        ("²", 0),
        ("soon", 0),
        (in_seconds(90), 90),
        (in_seconds(-90), 0),
        (in_seconds(86_400), MAX_RETRY_SECONDS),
        ("Fri Mar  1 12:00:30 2024", 30),
        ("Fri, 01 Mar 9999999 12:00:30 GMT", 0),
    ],
)
def test_retry_after(header, seconds):
    assert retry_after(header, NOW) == seconds


@pytest.mark.parametrize("secrets", [[], ["whsec_"], ["whsec_c2hvcnQ="], ["whsec_%%%"], ["not base64 at all, no"]])
def test_secrets_that_cannot_sign_are_refused_and_not_quoted(secrets):
    with pytest.raises(ValidationError) as refused:
        Settings(webhook_secrets={"default": secrets})
    assert "under 'default'" in str(refused.value)
    keys = [secret.removeprefix("whsec_") for secret in secrets]
    assert not any(key in str(refused.value) for key in keys if key)


@pytest.mark.parametrize("entry", ["https://example.org", "example.org:443", "*.example.org", "10.0.0.1/8", "a/b", ""])
def test_what_is_no_host_and_no_network_is_refused(entry):
    with pytest.raises(ValidationError):
        Settings(webhook_allow=[entry])


def test_hosts_addresses_and_networks_are_allowed():
    entries = ["hooks.internal", "127.0.0.1", "::1", "10.0.0.0/8", "fd00::/8"]
    assert Settings(webhook_allow=entries).webhook_allow == entries
