"""``Callback``, ``Webhook`` and ``KafkaTopic``: what deadlines, failed runs and backfills call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pydantic import JsonValue

from retrofill.domain.callback_rule import CallbackRule
from retrofill.domain.duration import seconds_of
from retrofill.domain.target import BODIES, FunctionCall, Target, TopicMessage, WebhookCall


def Webhook(url: str, *, secret: str = "default", body: str = "event", routing_key: str | None = None) -> WebhookCall:
    """A callback that POSTs to ``url``, signed with the ``secret`` of that name.

    ``body``: the event as JSON, or a message for ``"slack"``, ``"pagerduty"`` or ``"teams"``.
    ``routing_key``: for PagerDuty, the name of the integration's key in the settings.
    """
    if body not in BODIES:
        raise ValueError(f"webhook {url}: unknown body {body!r}: use one of {', '.join(BODIES)}")
    return WebhookCall.model_validate({"url": url, "secret": secret, "body": body, "routing_key": routing_key})


def KafkaTopic(topic: str) -> TopicMessage:
    """A callback that publishes the event to one of your Kafka topics."""
    return TopicMessage(topic=topic)


@dataclass(frozen=True)
class Callback:
    """One callback of a pipeline's ``on_run_failed`` or ``on_backfill_…``, with options.

    ``target`` is a name from the allow-list in the settings, a ``Webhook`` or a ``KafkaTopic``.
    Strings in ``kwargs`` may refer to what happened, like ``{backfill.id}``.
    With ``at_most_once``, a call with an unknown outcome is not repeated.
    ``digest``, only for ``on_run_failed``: failures of a backfill are collected for this long into
    one call, ``"1m"`` by default; with ``"0s"``, each failed run has its own.
    """

    target: str | Target
    kwargs: Mapping[str, JsonValue] | None = field(default=None, hash=False)
    at_most_once: bool = False
    digest: str | timedelta | None = None

    def to_rule(self, where: str) -> CallbackRule:
        """The callback as data. Raises ``ValueError`` that names the list ``where`` it stands."""
        if self.kwargs is not None and not isinstance(self.kwargs, Mapping):
            raise ValueError(f"{where} has the kwargs {self.kwargs!r}: give a dict")
        return CallbackRule(
            callback=target_of(self.target, where),
            kwargs=dict(self.kwargs or {}),
            at_most_once=self.at_most_once,
            digest_seconds=None if self.digest is None else seconds_of(self.digest),
        )


def target_of(given: str | Target, where: str) -> Target:
    """A callback as data; a bare name means a function. Raises ``ValueError``."""
    if isinstance(given, str):
        return FunctionCall(name=given)
    if isinstance(given, FunctionCall | WebhookCall | TopicMessage):
        return given
    raise ValueError(f"{where} has the callback {given!r}: give a name from the allow-list, a Webhook or a KafkaTopic")


def rules_of(given: Any, where: str) -> list[CallbackRule]:
    """A list of callbacks as data. Raises ``ValueError``."""
    if isinstance(given, str) or not isinstance(given, list | tuple):
        raise ValueError(f"{where} is {given!r}: give a list of callbacks")
    return [(each if isinstance(each, Callback) else Callback(each)).to_rule(where) for each in given]
