"""Checks what the SDK is given as soon as it is given, so that a traceback points to the user's line.

The checks are the services' models. A driver does not load them, which would take longer than most of what an
attempt does: a pipeline that it imports was checked when it was applied. Whether a function stages what it writes is looked
up here, too, as far as its source tells before it runs.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Callable, Mapping

# Only named: nothing of this package needs another one.
_PACKAGE = "retrofill_core"
_MODULE = f"{_PACKAGE}.user_code.checks"
_skipped = False


def skip() -> None:
    """Check nothing from now on in this process."""
    global _skipped
    _skipped = True


def checked(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a task, a target, a rule or an alert, unchanged. Raises ``ValueError``."""
    checks = None if _skipped else _checks()
    if checks is not None:
        checks.check(kind, dict(fields))
    return dict(fields)


def text_of(error: BaseException) -> str:
    """An error's text, of a check as the services explain it."""
    checks = _checks() if type(error).__name__ == "ValidationError" else None
    return str(error) if checks is None else str(checks.text_of(error))


@lru_cache(maxsize=None)
def _checks() -> ModuleType | None:
    return None if find_spec(_PACKAGE) is None else import_module(_MODULE)


# Those with which a task stages: ``run.stage``, ``run.stage_partitions``, ``run.stage_table``.
STAGES = ("stage", "stage_")


def stages(function: Callable[..., Any]) -> bool | None:
    """``True`` if it calls a method of its run that stages, ``False`` if it certainly does not.

    ``None`` if only a run can tell: it passes its run on, or its source is not at hand.
    """
    definition = _definition(function)
    if definition is None:
        return None
    # Without ``self``.
    arguments = [*definition.args.posonlyargs, *definition.args.args][1 if inspect.ismethod(function) else 0 :]
    names = {arguments[0].arg} if arguments else set()
    nodes = list(ast.walk(definition))
    # Each use of its run that is one of an attribute of it.
    attributes = [
        node for node in nodes if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in names
    ]
    if any(each.attr == STAGES[0] or each.attr.startswith(STAGES[1]) for each in attributes):
        return True
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id in names]
    wrapped = hasattr(function, "__wrapped__") or not names
    return None if wrapped or len(uses) > len(attributes) else False


def _definition(function: Callable[..., Any]) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    found = tree.body[0] if tree.body else None
    return found if isinstance(found, ast.FunctionDef) else None
