"""The runner's decisions. Pure: what follows from a try or a wish, whose turn it is, and when to look again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from tenacity import RetryCallState, Retrying, wait_exponential_jitter

from retrofill.domain.callback import CallbackState

# Hints may be lost: the index is probed this often whatever is known.
POLL_SECONDS = 60.0
# Somebody else had a due row locked.
AGAIN_SECONDS = 0.05
# Timers may end a little early; a little late costs nothing and saves a look.
AFTER_SECONDS = 0.001

_BACKOFF = wait_exponential_jitter(multiplier=0.5, max=60, exp_base=2, jitter=0.5)


@dataclass(frozen=True)
class Returned:
    """The call is done: the function returned, the webhook was answered with success, the message is on its topic."""


@dataclass(frozen=True)
class Raised:
    """The try failed; another may succeed.

    ``at_once``: what was called is not to blame. ``uncertain``: the call may have been done all the same.
    ``after_seconds``: who was called asks not to be called before.
    """

    error: str
    at_once: bool = False
    uncertain: bool = False
    after_seconds: float = 0.0


@dataclass(frozen=True)
class Impossible:
    """No try can succeed. ``gone``: whoever was called wants to be called no more."""

    error: str
    gone: bool = False


@dataclass(frozen=True)
class Superseded:
    """The claim is somebody else's now: there is nothing to record."""


Outcome = Returned | Raised | Impossible


@dataclass(frozen=True)
class Succeed:
    """The callback is done."""


@dataclass(frozen=True)
class GiveUp:
    """The callback failed for good. ``uncertain``: its last call may have been done all the same."""

    error: str
    uncertain: bool = False
    gone: bool = False


@dataclass(frozen=True)
class TryAgain:
    """The callback is called again."""

    error: str
    after_seconds: float


Decision = Succeed | GiveUp | TryAgain


def after_try(outcome: Outcome, attempts: int, max_attempts: int, *, at_most_once: bool = False) -> Decision:
    """What the end of call number ``attempts`` (from 1) means.

    ``at_most_once``: a call that may have been done is not made again, so it failed for good.
    """
    match outcome:
        case Returned():
            return Succeed()
        case Impossible(error, gone):
            return GiveUp(error, gone=gone)
        case Raised(error, at_once, uncertain, after_seconds):
            if attempts >= max_attempts or (uncertain and at_most_once):
                return GiveUp(error, uncertain)
            return TryAgain(error, max(after_seconds, 0.0 if at_once else backoff(attempts)))


def backoff(attempts: int) -> float:
    """Seconds before the next call after ``attempts`` failed ones: doubling, with jitter, a minute at most."""
    state = RetryCallState(Retrying(), None, (), {})
    state.attempt_number = attempts
    return _BACKOFF(state)


def seconds_to_next(next_try: datetime | None, next_lapse: datetime | None, now: datetime) -> float:
    """When to look again. ``next_try`` is of what could be called then: a slot that gets free wakes the runner."""
    left = min(((moment - now).total_seconds() for moment in (next_try, next_lapse) if moment), default=POLL_SECONDS)
    return AGAIN_SECONDS if left <= 0 else min(left + AFTER_SECONDS, POLL_SECONDS)


@dataclass(frozen=True)
class Waiting:
    """A callback whose time to be called came."""

    deadline_id: int
    pipeline: str
    since: datetime


def most_of_a_pipeline(slots: int) -> int:
    """How many of a runner's slots the callbacks of one pipeline may hold, so that some are left for the others."""
    return max(1, slots // 2)


def in_turn(
    waiting: Iterable[Waiting], running: Mapping[str, int], served: Mapping[str, int], free: int, most: int
) -> list[int]:
    """The deadline ids of up to ``free`` callbacks to claim.

    Pipelines take turns: the one with the fewest calls in this runner first, then the one that was served longest ago
    (``served``: a number that grows). None gets more than ``most`` at once. Of a pipeline the longest waiting is first.
    """
    queues: dict[str, list[Waiting]] = {}
    for one in sorted(waiting, key=lambda w: (w.since, w.deadline_id), reverse=True):
        queues.setdefault(one.pipeline, []).append(one)
    calls = {pipeline: running.get(pipeline, 0) for pipeline in queues}
    chosen: list[int] = []
    while len(chosen) < free:
        open_ = [pipeline for pipeline, queue in queues.items() if queue and calls[pipeline] < most]
        if not open_:
            break
        turn = min(open_, key=lambda p: (calls[p], served.get(p, 0), queues[p][-1].since, p))
        chosen.append(queues[turn].pop().deadline_id)
        calls[turn] += 1
    return chosen


def why_not_replayed(state: str | None) -> str:
    """Why a callback in ``state`` is not called again; ``None``: there is none."""
    match state:
        case None:
            return "this deadline has no callback"
        case CallbackState.SUCCEEDED:
            return "it succeeded, and is never called again"
        case CallbackState.FAILED:
            return "it failed, and somebody else changes it right now"
        case _:
            return f"it is {state}: it is called (again) without being asked for"


def unknown(name: str, known: Iterable[str]) -> Impossible:
    """A callback that the settings do not allow."""
    names = ", ".join(sorted(known)) or "none"
    return Impossible(f"{name!r} is not in the allow-list of callbacks (RETROFILL_CALLBACKS); names there: {names}")


def switched_off(url: str, since: datetime) -> Impossible:
    """A webhook that answered 410 Gone."""
    return Impossible(
        f"{url} is switched off since {since:%Y-%m-%d %H:%M:%S} UTC: it answered 410 Gone. Once it takes calls again, "
        "replay one that failed (retrofill callbacks replay): a success switches it on"
    )
