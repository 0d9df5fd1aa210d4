"""The runner's decisions. Pure: what follows from a try, and when to look again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from tenacity import RetryCallState, Retrying, wait_exponential_jitter

# Hints may be lost: the index is probed this often whatever is known.
POLL_SECONDS = 60.0
# Somebody else had a due row locked.
AGAIN_SECONDS = 0.05
# Timers may end a little early; a little late costs nothing and saves a look.
AFTER_SECONDS = 0.001

_BACKOFF = wait_exponential_jitter(multiplier=0.5, max=60, exp_base=2, jitter=0.5)


@dataclass(frozen=True)
class Returned:
    """The function returned."""


@dataclass(frozen=True)
class Raised:
    """The try failed; another may succeed. ``at_once``: the function is not to blame."""

    error: str
    at_once: bool = False


@dataclass(frozen=True)
class Impossible:
    """No try can succeed."""

    error: str


@dataclass(frozen=True)
class Superseded:
    """The claim is somebody else's now: there is nothing to record."""


Outcome = Returned | Raised | Impossible | Superseded


@dataclass(frozen=True)
class Succeed:
    """The callback is done."""


@dataclass(frozen=True)
class GiveUp:
    """The callback failed for good."""

    error: str


@dataclass(frozen=True)
class TryAgain:
    """The callback is called again."""

    error: str
    after_seconds: float


def after_try(outcome: Returned | Raised | Impossible, attempts: int, max_attempts: int) -> Succeed | GiveUp | TryAgain:
    """What the end of call number ``attempts`` (from 1) means."""
    match outcome:
        case Returned():
            return Succeed()
        case Impossible(error):
            return GiveUp(error)
        case Raised(error, at_once):
            if attempts >= max_attempts:
                return GiveUp(error)
            return TryAgain(error, 0.0 if at_once else backoff(attempts))


def backoff(attempts: int) -> float:
    """Seconds before the next call after ``attempts`` failed ones: doubling, with jitter, a minute at most."""
    state = RetryCallState(Retrying(), None, (), {})
    state.attempt_number = attempts
    return _BACKOFF(state)


def seconds_to_next(next_try: datetime | None, next_lapse: datetime | None, now: datetime, *, free: int) -> float:
    """When to look again. Without a free slot only leases count: a slot that gets free wakes the runner."""
    moments: Iterable[datetime | None] = (next_try if free > 0 else None, next_lapse)
    left = min(((moment - now).total_seconds() for moment in moments if moment is not None), default=POLL_SECONDS)
    return AGAIN_SECONDS if left <= 0 else min(left + AFTER_SECONDS, POLL_SECONDS)


def unknown(name: str, known: Iterable[str]) -> Impossible:
    """A callback that the settings do not allow."""
    names = ", ".join(sorted(known)) or "none"
    return Impossible(f"{name!r} is not in the allow-list of callbacks (RETROFILL_CALLBACKS); names there: {names}")
