"""``enum.StrEnum``, also for drivers with a Python that does not have it."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """Members are strings, and print as those."""

        __str__ = str.__str__
        __format__ = str.__format__


__all__ = ["StrEnum"]
