"""How a mutation changes the services' code: it exchanges what a name stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Owner (a module or class), name, and what it is instead.
Patch = Callable[[Any, str, Any], None]
