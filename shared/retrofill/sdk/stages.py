"""Whether a function stages what it writes, as far as its source tells before it runs."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any, Callable

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
