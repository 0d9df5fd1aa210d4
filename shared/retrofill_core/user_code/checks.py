"""Checks what a pipeline's file says, for the SDK, which imports this module where it is installed (``retrofill.sdk.checking``)."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from retrofill_core.domain.alert import DeadlineAlert
from retrofill_core.domain.callback_rule import CallbackRule
from retrofill_core.domain.pipeline import TaskDefinition
from retrofill_core.domain.target import Target

_KINDS: dict[str, Any] = {"task": TaskDefinition, "target": Target, "rule": CallbackRule, "alert": DeadlineAlert}
_MODELS: dict[str, TypeAdapter[Any]] = {kind: TypeAdapter(model) for kind, model in _KINDS.items()}


def check(kind: str, fields: dict[str, Any]) -> None:
    """Raises ``pydantic.ValidationError``, a ``ValueError``."""
    _MODELS[kind].validate_python(fields)


def text_of(error: BaseException) -> str:
    """An error's text. The first line of pydantic's own is only the number of errors."""
    from retrofill_core.contract.explain import explain

    return explain(error) if isinstance(error, ValidationError) else str(error)
