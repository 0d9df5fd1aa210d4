"""What is called when a deadline is missed; the callback-runner's allow-list names it ``page_oncall``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def page_oncall(context: dict[str, Any], **kwargs: Any) -> None:
    """Append a line to the file that ``FLIGHTS_PAGES`` names, as a pager would be told."""
    line = json.dumps({"context": context, "kwargs": kwargs}, default=str, sort_keys=True)
    with Path(os.environ["FLIGHTS_PAGES"]).open("a") as pages:
        pages.write(line + "\n")
