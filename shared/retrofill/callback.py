"""``Callback``, ``Webhook`` and ``KafkaTopic``: what deadlines, failed runs and backfills call."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Mapping

from retrofill.sdk.checking import checked
from retrofill.sdk.names import BODIES, seconds_of


@dataclass(frozen=True)
class Target:
    """What a callback calls. Create one with ``Webhook`` or ``KafkaTopic``."""

    fields: Mapping[str, Any] = field(hash=False)


def Webhook(url: str, *, secret: str = "default", body: str = "event", routing_key: str | None = None) -> Target:
    """A callback that POSTs to ``url``, signed with the ``secret`` of that name.

    ``body``: the event as JSON, or a message for ``"slack"``, ``"pagerduty"`` or ``"teams"``.
    ``routing_key``: for PagerDuty, the name of the integration's key in the settings.
    """
    if body not in BODIES:
        raise ValueError(f"webhook {url}: unknown body {body!r}: use one of {', '.join(BODIES)}")
    fields = {"kind": "webhook", "url": url, "secret": secret, "body": body, "routing_key": routing_key}
    return Target(checked("target", fields))


def KafkaTopic(topic: str) -> Target:
    """A callback that publishes the event to one of your Kafka topics."""
    return Target(checked("target", {"kind": "topic", "topic": topic}))


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
    kwargs: Mapping[str, Any] | None = field(default=None, hash=False)
    at_most_once: bool = False
    digest: str | timedelta | None = None

    def to_rule(self, where: str) -> dict[str, Any]:
        """The callback as data. Raises ``ValueError`` that names the list ``where`` it stands."""
        if self.kwargs is not None and not isinstance(self.kwargs, Mapping):
            raise ValueError(f"{where} has the kwargs {self.kwargs!r}: give a dict")
        fields = {
            "callback": target_of(self.target, where),
            "kwargs": dict(self.kwargs or {}),
            "at_most_once": self.at_most_once,
            "digest_seconds": None if self.digest is None else seconds_of(self.digest),
        }
        return checked("rule", fields)


def target_of(given: str | Target, where: str) -> dict[str, Any]:
    """A callback as data; a bare name means a function. Raises ``ValueError``."""
    if isinstance(given, str):
        return checked("target", {"kind": "function", "name": given})
    if isinstance(given, Target):
        return dict(given.fields)
    raise ValueError(f"{where} has the callback {given!r}: give a name from the allow-list, a Webhook or a KafkaTopic")


def rules_of(given: Any, where: str) -> list[dict[str, Any]]:
    """A list of callbacks as data. Raises ``ValueError``."""
    if isinstance(given, str) or not isinstance(given, (list, tuple)):
        raise ValueError(f"{where} is {given!r}: give a list of callbacks")
    return [(each if isinstance(each, Callback) else Callback(each)).to_rule(where) for each in given]
