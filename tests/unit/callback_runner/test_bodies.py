"""Ready-made bodies: their services' published schemas, limits, and one incident per subject."""

import json
import math
from datetime import UTC, datetime

import pytest
from pydantic import SecretStr
from tests.support.bodies import problems
from tools.examples import BODIES as EXAMPLES

from callback_runner.bodies import LINE_CHARACTERS, notice_of, ready_made
from callback_runner.decide import Impossible
from callback_runner.interruptible import Permit
from callback_runner.record import Claim
from callback_runner.sender import make_sender
from callback_runner.webhooks import Signer, body_of, call

KEY = "k" * 32
SERVICES = ("slack", "pagerduty", "teams")
EVENTS = ("DeadlineMissed", "DeadlinesMissed", "RunsFailed", "BackfillFailed", "BackfillSucceeded")
# The longest that a body may be, in bytes.
LONGEST = {"slack": 500_000, "pagerduty": 512 * 1024, "teams": 28 * 1024}


def claim(type, body="slack", **more):
    event = {"type": type, **EXAMPLES[type]}
    listed = "deadline_id" not in event and "digest_id" not in event
    given = {
        "deadline_id": 977,
        "shard": 0,
        "name": "https://example.org/hook",
        "kind": "webhook",
        "pipeline": "flights_daily",
        "options": {"body": body, "routing_key": "data"},
        "kwargs": {"team": "team-7", "tags": ["a", 1]},
        "event": event,
        "attempts": 1,
        "runners_lost": 0,
        "token": "t",
        "off_since": None,
        "due_at": datetime(2024, 3, 1, 12, tzinfo=UTC),
        "occasion": "run_failed" if listed else None,
        "backfill_id": event.get("backfill_id") if listed else None,
        **more,
    }
    return Claim(**given)


def sent(claim, installation="here"):
    return json.loads(body_of(claim, installation, KEY))


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("type", EVENTS)
def test_a_body_is_what_its_service_documents(service, type):
    body = sent(claim(type, service))
    assert problems(service, body) == []
    text = json.dumps(body)
    assert "flights_daily" in text
    assert "team-7" in text  # its kwargs


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("letter", ["é", "&", "<", '"', "\\", "\x01", "😀", "\u202e"])
def test_the_longest_texts_stay_within_the_limits(service, letter):
    long = letter * 5000
    failed = [{**EXAMPLES["RunsFailed"]["failed"][0], "error": {"type": long, "message": long}}] * 100
    event = {**EXAMPLES["RunsFailed"], "type": "RunsFailed", "failed": failed, "count": 10_000}
    given = claim("RunsFailed", service, event=event, kwargs={f"{n}{long}": long for n in range(50)})
    assert problems(service, sent(given)) == []
    assert len(body_of(given, "here", KEY).encode()) <= LONGEST[service]


@pytest.mark.parametrize("service", SERVICES)
def test_a_row_of_an_older_version_has_a_body_too(service):
    given = claim("DeadlineMissed", service, event={}, pipeline="", kwargs={})
    assert problems(service, sent(given)) == []


def test_what_a_schema_refuses_is_found():
    body = sent(claim("RunsFailed", "slack"))
    body["blocks"][0]["text"]["text"] = "x" * 151
    assert problems("slack", body)
    body = sent(claim("RunsFailed", "pagerduty"))
    body["payload"]["severity"] = "bad"
    assert problems("pagerduty", body)
    body = sent(claim("RunsFailed", "teams"))
    body["attachments"][0]["content"]["body"].append({"type": "Text"})
    assert problems("teams", body)


def test_slack_shows_texts_as_they_are():
    error = {"type": "E", "message": "<!channel> & <https://bad|good>"}
    failed = [{**EXAMPLES["RunsFailed"]["failed"][0], "error": error}]
    event = {**EXAMPLES["RunsFailed"], "type": "RunsFailed", "failed": failed}
    text = body_of(claim("RunsFailed", event=event))
    assert "&lt;!channel&gt; &amp; &lt;https://bad|good&gt;" in text
    assert "<" not in text


def test_notices_about_one_subject_are_one_incident():
    def key(type, installation="here", **more):
        return sent(claim(type, "pagerduty", **more), installation)["dedup_key"]

    failed = key("RunsFailed")
    assert failed == key("RunsFailed", deadline_id=978, attempts=3) == key("BackfillFailed")
    of_the_backfill = {**EXAMPLES["DeadlineMissed"], "type": "DeadlineMissed", "scope": "backfill"}
    assert failed == key("DeadlineMissed", event=of_the_backfill)
    others = {key("RunsFailed", "there"), key("RunsFailed", backfill_id="other"), key("DeadlineMissed")}
    assert len({failed, key("DeadlineMissed", deadline_id=5), *others}) == 5


def test_the_success_of_a_backfill_resolves_its_incident():
    done = sent(claim("BackfillSucceeded", "pagerduty"))
    assert (done["event_action"], done["payload"]["severity"]) == ("resolve", "info")
    assert done["dedup_key"] == sent(claim("RunsFailed", "pagerduty"))["dedup_key"]
    assert sent(claim("RunsFailed", "pagerduty"))["event_action"] == "trigger"
    assert sent(claim("RunsFailed", "pagerduty"))["routing_key"] == KEY


def test_a_digest_lists_its_first_and_counts_the_rest():
    notice = notice_of(claim("RunsFailed"))
    assert notice.title == "flights_daily: 120 runs failed"
    assert notice.lines[0].endswith("ValueError: no flights on 2013-01-03")
    assert notice.lines[-1] == "and 119 more"
    assert all(len(line) <= LINE_CHARACTERS for line in notice.lines)
    assert notice.command == "retrofill backfill show flights-2013-01"


def test_without_a_body_the_event_is_sent():
    assert ready_made(claim("RunsFailed", "event"), "here", None) is None
    payload = sent(claim("RunsFailed", "event"))
    assert payload["type"] == "RunsFailed"
    assert payload["timestamp"] == "2026-03-02T08:13:40+00:00"
    assert payload["data"]["kwargs"] == {"team": "team-7", "tags": ["a", 1]}
    assert "deadline_id" not in payload["data"]


def test_a_missing_routing_key_is_named():
    signer = Signer("here", {"default": [SecretStr("whsec_")]}, {})
    permit = Permit(1.0, lambda: math.inf)
    assert call(claim("RunsFailed", "pagerduty"), "https://example.org", signer, make_sender([]), permit) == Impossible(
        "there is no routing key 'data' (RETROFILL_PAGERDUTY_KEYS); names there: none"
    )
