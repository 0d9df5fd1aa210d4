"""Limits how long a publication is tried again before it is left to a later publisher.

What was accepted fails only for what the output itself refuses for ever. Somebody else's commit, a catalog or a
directory that is away are no such refusals.
"""

from __future__ import annotations

import random
import time
from typing import Callable, TypeVar

from retrofill.errors import first_line
from retrofill.log import get_log

log = get_log(__name__)
SECONDS = 60.0
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 10.0
T = TypeVar("T")


class NotNow(Exception):
    """The output cannot be published now. Its cause says why, and a later publisher tries it again."""


class Patience:
    """Of one attempt. Once it is used up, the next outputs are tried once each, until one is published."""

    def __init__(self) -> None:
        self._used_up = False

    def retry(self, output: str, work: Callable[[int], T], is_refusal: Callable[[Exception], bool]) -> T:
        """Call ``work`` with the number of the try, from 1, until it returns.

        Raises its error if that is a refusal for ever, else ``NotNow`` after the last try.
        """
        until = time.monotonic() + (0.0 if self._used_up else SECONDS)
        tries = 0
        while True:
            tries += 1
            try:
                found = work(tries)
            except Exception as e:
                if is_refusal(e):
                    raise
                log.warning("publication_waits", output=output, tries=tries, error=first_line(e))
                left = until - time.monotonic()
                if left <= 0:
                    self._used_up = True
                    raise NotNow(f"{output} cannot be published now") from e
            else:
                self._used_up = False
                return found
            # Those that met in a conflict must not meet again.
            pause = min(FIRST_PAUSE_SECONDS * 2.0 ** (tries - 1), MAX_PAUSE_SECONDS) * random.uniform(0.5, 1.5)
            time.sleep(min(pause, left))
