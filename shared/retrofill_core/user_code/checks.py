"""Checks what a pipeline's file says, for the SDK, which imports this module where it is installed (``retrofill.sdk.checking``)."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from retrofill_core.domain.callback import CallbackRule, Target
from retrofill_core.domain.deadline import DeadlineAlert
from retrofill_core.domain.pipeline import TaskDefinition

_KINDS: dict[str, Any] = {"task": TaskDefinition, "target": Target, "rule": CallbackRule, "alert": DeadlineAlert}


def check(kind: str, fields: dict[str, Any]) -> None:
    """Raises ``pydantic.ValidationError``, a ``ValueError``."""
    _model(kind).validate_python(fields)


@cache
def _model(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_KINDS[kind])


def text_of(error: BaseException) -> str:
    """An error's text. The first line of pydantic's own is only the number of errors."""
    from retrofill_core.contract.base import explain

    # Of a task, people write these fields as arguments of ``Pipeline.submit``, ``command`` or ``sql``.
    return explain(error, within=("submit", "sql")) if isinstance(error, ValidationError) else str(error)
