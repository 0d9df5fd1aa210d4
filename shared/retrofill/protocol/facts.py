"""Facts that a driver reports besides states: errors, costs and applications. Its host checks them by the contract."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from retrofill.errors import head_of


@dataclass(frozen=True)
class ErrorInfo:
    """Why a task or run failed: the name of the exception's class, its message and the last lines of its traceback.

    ``same_as_run``: the run that has all of it.
    """

    type: str
    message: str
    traceback: str | None = None
    same_as_run: int | None = None

    def of_run(self, id: int, first: int) -> ErrorInfo:
        """As a run has it. If it is long, only the ``first`` of those that have it has all of it."""
        head = None if id == first else head_of(self.message, self.traceback)
        return self if head is None else replace(self, message=head, traceback=None, same_as_run=first)


@dataclass(frozen=True)
class SparkApplication:
    """The Spark application that an attempt uses, and the address of its web UI."""

    id: str
    ui: str | None = None


@dataclass(frozen=True)
class Published:
    """A folder or table that a run has replaced. ``version``: the table's since then, if it is known.

    ``replaced_change``: whether that was changed after the state that a review had approved.
    """

    name: str
    version: str | None = None
    replaced_change: bool = False


@dataclass(frozen=True)
class Cost:
    """The resources that Spark reported: seconds of executor cores, bytes and rows."""

    core_seconds: float | None = None
    shuffle_bytes: int | None = None
    rows_read: int | None = None
    rows_written: int | None = None

    def shared_by(self, runs: int) -> Cost:
        """The part of each of so many runs that were processed in one go."""

        def part(whole: int | None) -> int | None:
            return None if whole is None else whole // runs

        return Cost(
            core_seconds=None if self.core_seconds is None else self.core_seconds / runs,
            shuffle_bytes=part(self.shuffle_bytes),
            rows_read=part(self.rows_read),
            rows_written=part(self.rows_written),
        )


def as_json(fact: Any) -> dict[str, Any]:
    """The fields of a fact that are known, and not as usual."""
    return {name: value for name, value in asdict(fact).items() if value is not None and value is not False}
