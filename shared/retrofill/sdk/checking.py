"""Checks what the SDK is given as soon as it is given, so that a traceback points to the user's line.

The checks are the services' models. A driver's Python does not have them: a pipeline that it imports
was checked when it was applied.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Mapping


def checked(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a task, a target, a rule or an alert, unchanged. Raises ``ValueError``."""
    model = _models().get(kind)
    if model is not None:
        model.validate_python(dict(fields))
    return dict(fields)


@lru_cache(maxsize=None)
def _models() -> Mapping[str, Any]:
    if find_spec("retrofill_core.domain.pipeline") is None:
        return {}
    from pydantic import TypeAdapter

    from retrofill_core.domain.alert import DeadlineAlert
    from retrofill_core.domain.callback_rule import CallbackRule
    from retrofill_core.domain.pipeline import TaskDefinition
    from retrofill_core.domain.target import Target

    kinds: Mapping[str, Any] = {"task": TaskDefinition, "target": Target, "rule": CallbackRule, "alert": DeadlineAlert}
    return {kind: TypeAdapter(model) for kind, model in kinds.items()}
