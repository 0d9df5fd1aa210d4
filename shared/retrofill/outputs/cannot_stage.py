"""Why output cannot be staged. Each message is one line that says what to do."""

from __future__ import annotations


class CannotStage(ValueError):
    """The path or table cannot be staged."""


class NoSuchTable(CannotStage):
    """The table does not exist."""


class NoSuchColumn(CannotStage):
    """The table has no column of that name, or none that distinguishes intervals."""


class DoesNotFit(CannotStage):
    """The rows do not have the table's columns, types or required values."""


class OtherInterval(CannotStage):
    """A row belongs to another interval."""
