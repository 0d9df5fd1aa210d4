"""Checks, when a pipeline is applied, that its callbacks can be called."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from retrofill.errors import UserError
from retrofill_core.contract.topics import is_own
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.target import FunctionCall, Target, TopicMessage, WebhookCall
from retrofill_core.settings import Settings


def check_targets(definition: PipelineDefinition, settings: Settings) -> None:
    """Raises ``UserError`` for the first callback that cannot be called."""
    for where, target, kwargs in _calls(definition):
        try:
            check_target(target, settings, kwargs)
        except ValueError as e:
            raise UserError(f"{definition.name}: {where}: {e}") from e


def _calls(definition: PipelineDefinition) -> Iterator[tuple[str, Target, Mapping[str, Any]]]:
    for alert in definition.deadlines:
        if alert.callback is not None:
            yield f"deadline {alert.name!r}", alert.callback, alert.kwargs
    for occasion, rules in definition.rules.items():
        for rule in rules:
            yield f"on_{occasion}", rule.callback, rule.kwargs


def check_target(target: Target, settings: Settings, kwargs: Mapping[str, Any] | None = None) -> None:
    """Raises ``ValueError`` if ``target`` is not allowed or does not accept the kwargs."""
    match target:
        case FunctionCall(name=name):
            if name not in settings.callbacks:
                raise ValueError(
                    f"there is no callback {name!r}; RETROFILL_CALLBACKS has: {_names(settings.callbacks)}"
                )
            _check_call(name, settings.callbacks[name], kwargs or {})
        case WebhookCall(secret=secret, routing_key=key):
            if secret not in settings.webhook_secrets:
                known = _names(settings.webhook_secrets)
                raise ValueError(f"there is no webhook secret {secret!r}; RETROFILL_WEBHOOK_SECRETS has: {known}")
            if key is not None and key not in settings.pagerduty_keys:
                known = _names(settings.pagerduty_keys)
                raise ValueError(f"there is no routing key {key!r}; RETROFILL_PAGERDUTY_KEYS has: {known}")
        case TopicMessage(topic=topic):
            if is_own(topic, settings.topic_prefix):
                raise ValueError(f"the topic {topic!r} is one of Retrofill's own: use a topic of yours")


def _check_call(name: str, place: str, kwargs: Mapping[str, Any]) -> None:
    function = _function(place)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some C functions have no signature
        return
    try:
        given = dict(kwargs)
        parameter = signature.parameters.get("context")
        if parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            given.setdefault("context", {})
        signature.bind(**given)
    except TypeError as e:
        raise ValueError(
            f"the callback {name!r} ({place}) does not accept these kwargs: {e}; it takes {_takes(signature)}"
        ) from e


def _function(place: str) -> Callable[..., Any]:
    # As in the process that calls it, modules in the working directory can be imported.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    module, _, path = place.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as e:
        raise ValueError(f"the callback {place} cannot be imported: {type(e).__name__}: {e}") from e
    if not callable(found):
        raise ValueError(f"{place} is not a function but of type {type(found).__name__}")
    function: Callable[..., Any] = found
    return function


def _takes(signature: inspect.Signature) -> str:
    return ", ".join(str(p) for name, p in signature.parameters.items() if name != "context") or "nothing"


def _names(known: dict[str, Any]) -> str:
    return ", ".join(sorted(known)) or "none"
