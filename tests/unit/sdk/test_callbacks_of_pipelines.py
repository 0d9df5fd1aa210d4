"""``on_run_failed`` and ``on_backfill_…``: what users write becomes data, or one line."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.support.loading import definition_of

from retrofill import Callback, KafkaTopic, Pipeline, Webhook
from retrofill.errors import UserError
from retrofill_core.domain.callback import DIGEST_SECONDS, MAX_RULES, Occasion, options_of
from retrofill_core.domain.pipeline import CodeLocation, PipelineDefinition
from retrofill_core.settings import Settings
from retrofill_tools.cli.pipelines import check_targets

CODE = CodeLocation(file="/pipelines/flights.py", attribute="flights")
PAGERDUTY = "https://events.pagerduty.com/v2/enqueue"
SECRET = "whsec_aHVudGVyMi1odW50ZXIyLWh1bnRlcjItaHVudGVyMg=="


def defined(**more: Any) -> PipelineDefinition:
    flights = Pipeline("flights", schedule="@daily", **more)

    @flights.task
    def delays(run: object) -> None: ...

    return definition_of(flights, CODE)


def test_all_that_can_be_listed() -> None:
    definition = defined(
        on_run_failed=[
            "page",
            Callback(Webhook(PAGERDUTY, body="pagerduty", routing_key="data"), digest="5m", at_most_once=True),
        ],
        on_backfill_succeeded=[KafkaTopic("reporting.done")],
        on_backfill_failed=[Callback("page", kwargs={"text": "{backfill.id}: {backfill.failed:d} failed"})],
    )
    page, incident = definition.rules[Occasion.RUN_FAILED]
    assert (page.callback.kind, page.callback.key, page.window_seconds) == ("function", "page", DIGEST_SECONDS)
    assert (incident.window_seconds, incident.at_most_once) == (300.0, True)
    assert options_of(incident.callback, at_most_once=True) == {
        "at_most_once": True,
        "secret": "default",
        "body": "pagerduty",
        "routing_key": "data",
    }
    assert [rule.callback.key for rule in definition.on_backfill_succeeded] == ["reporting.done"]
    assert PipelineDefinition.model_validate(definition.as_json()) == definition


def test_each_failure_by_itself() -> None:
    for nothing in ("0s", timedelta(0)):
        assert defined(on_run_failed=[Callback("page", digest=nothing)]).on_run_failed[0].window_seconds == 0


def test_a_pipeline_of_an_older_release_lists_nothing() -> None:
    data = {name: value for name, value in defined().as_json().items() if not name.startswith("on_")}
    assert not any(PipelineDefinition.model_validate(data).rules.values())


def webhook(**more: Any) -> Any:
    return lambda: Webhook("https://example.org/hook", **more)


MISTAKES: dict[str, tuple[Any, str]] = {
    "an unknown body": (webhook(body="slak"), "unknown body 'slak': use one of event, slack, pagerduty, teams"),
    "no routing key": (webhook(body="pagerduty"), "body='pagerduty' needs routing_key"),
    "a key that nobody asks for": (webhook(body="slack", routing_key="data"), "body='slack' takes no routing_key"),
    "two places": (webhook(receiver="oncall"), "either a url or a receiver"),
    "a receiver that is no name": (lambda: Webhook(receiver="on call"), "invalid name 'on call'"),
    "not a list": (lambda: defined(on_run_failed="page"), "on_run_failed is 'page': give a list of callbacks"),
    "not a callback": (lambda: defined(on_run_failed=[3]), "on_run_failed has the callback 3: give a name"),
    "kwargs": (lambda: defined(on_run_failed=[Callback("page", kwargs=3)]), "has the kwargs 3: give a dict"),  # type: ignore[arg-type]
    "a name that a run does not have": (
        lambda: defined(on_run_failed=[Callback("page", kwargs={"text": "{deadline.id}"})]),
        "on_run_failed: the text '{deadline.id}': unknown name 'deadline.id'; known names: backfill.id",
    ),
    "a name that a backfill does not have": (
        lambda: defined(on_backfill_failed=[Callback("page", kwargs={"text": "{run.id}"})]),
        "on_backfill_failed: the text '{run.id}': unknown name 'run.id'",
    ),
    "a digest of one backfill": (
        lambda: defined(on_backfill_succeeded=[Callback("page", digest="5m")]),
        "on_backfill_succeeded: remove the digest",
    ),
    "too many": (
        lambda: defined(on_run_failed=["page"] * (MAX_RULES + 1)),
        "on_run_failed lists 11 callbacks, more than 10: remove some",
    ),
    "a digest of two days": (
        lambda: defined(on_run_failed=[Callback("page", digest="2d")]),
        "less than or equal to 86400",
    ),
}


@pytest.mark.parametrize(("make", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError) as refused:
        make()
    assert message in " ".join(str(refused.value).split())


APPLIED: dict[str, tuple[dict[str, Any], str]] = {
    "a function": ({"on_run_failed": ["page"]}, "flights: on_run_failed: there is no callback 'page'"),
    "a secret": (
        {"on_backfill_failed": [Webhook("https://example.org", secret="other")]},
        "flights: on_backfill_failed: there is no webhook secret 'other'",
    ),
    "a routing key": (
        {"on_run_failed": [Webhook(PAGERDUTY, body="pagerduty", routing_key="data")]},
        "flights: on_run_failed: there is no routing key 'data'; RETROFILL_PAGERDUTY_KEYS has: none",
    ),
    "a receiver": (
        {"on_run_failed": [Webhook(receiver="oncall")]},
        "flights: on_run_failed: there is no receiver 'oncall'; RETROFILL_RECEIVERS has: team",
    ),
    "an address that is a secret": (
        {"on_backfill_failed": [Webhook("https://hooks.slack.com/services/T0/B0/x")]},
        "flights: on_backfill_failed: the address https://hooks.slack.com/*** looks like a secret, and all readers of "
        "definitions would see it: use Webhook(receiver='NAME')",
    ),
    "a topic": (
        {"on_backfill_succeeded": [KafkaTopic("retrofill.run-events")]},
        "flights: on_backfill_succeeded: the topic 'retrofill.run-events' belongs to Retrofill",
    ),
}


@pytest.mark.parametrize(("listed", "message"), APPLIED.values(), ids=APPLIED)
def test_what_the_settings_lack_is_named_when_it_is_applied(listed: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        check_targets(defined(**listed), Settings(webhook_secrets={"default": [SECRET]}, receivers={"team": None}))
    assert str(refused.value).startswith(message)


def test_of_a_receiver_its_name_is_enough_to_apply() -> None:
    settings = Settings(webhook_secrets={"default": [SECRET]}, receivers={"team": None})
    check_targets(defined(on_run_failed=[Webhook(receiver="team", body="slack")]), settings)


@pytest.mark.parametrize(
    "address", ["", "hooks.example/k3Jw", "ftp://hooks.example/k3Jw", "https://a:k3Jw@hooks.example"]
)
def test_an_address_that_is_none_is_refused_and_not_quoted(address: str) -> None:
    with pytest.raises(ValueError, match="the address under 'team': ") as refused:
        Settings(receivers={"team": address})
    assert "k3Jw" not in str(refused.value)


@pytest.mark.parametrize("key", ["", "k" * 31, "k" * 31 + "!"])
def test_a_routing_key_that_is_none_is_refused_and_not_quoted(key: str) -> None:
    with pytest.raises(ValueError, match="the key under 'data' must have 32 letters and digits") as refused:
        Settings(pagerduty_keys={"data": key})
    assert not key or key not in str(refused.value)
