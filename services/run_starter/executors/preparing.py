"""The launches whose environment or code this machine has not unpacked yet."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from retrofill.errors import kind_and_line
from retrofill.log import get_log
from retrofill.states import AttemptMode
from retrofill_core.settings import Settings
from retrofill_core.user_code.environments import Packed
from retrofill_core.user_code.store import CannotUnpackHere, CodeUnavailable
from retrofill_core.user_code.unpacked import cache_of, unpacked
from run_starter.executors import Condition, Host, Key, LaunchRequest, processes, submission
from run_starter.executors.command import Interpreters

log = get_log(__name__)


@dataclass(frozen=True)
class Needed:
    """What a launch needs on this machine: a packed environment, and shipped code by its hash."""

    packed: Packed | None
    code: str | None

    def __str__(self) -> str:
        parts = (("environment", self.packed and self.packed.sha256), ("code", self.code))
        return " and ".join(f"the {what} {sha256}" for what, sha256 in parts if sha256 is not None)


class Preparing:
    """Implements ``Executor`` for launches whose environment or code is being unpacked; ``then`` gets them afterwards.

    A driver would ask for the code itself, but only once its run has begun, which would then fail
    though only this machine's disk is full.
    """

    def __init__(
        self, settings: Settings, interpreters: Interpreters, host: Host, then: Callable[[LaunchRequest], None]
    ) -> None:
        self._settings = settings
        self._interpreters = interpreters
        self._host = host
        self._then = then
        self._lock = threading.RLock()
        # In order. What is here has a thread.
        self._launches: dict[Needed, dict[Key, LaunchRequest]] = defaultdict(dict)
        self._failures: Failures[Needed] = Failures()
        # After a failure of this machine's own.
        self._not_before = 0.0
        self._note: str | None = None
        self._closed = threading.Event()

    def condition(self) -> Condition:
        """``submits``: whether launches are welcome.

        They are not for a few seconds after this machine could not unpack something, which another one may be able to.
        """
        return Condition(0, submits=time.monotonic() >= self._not_before, note=self._note)

    def waiting(self) -> list[LaunchRequest]:
        with self._lock:
            return [launch for launches in self._launches.values() for launch in launches.values()]

    def hosted(self) -> set[Key]:
        return {launch.key for launch in self.waiting()}

    def launch(self, launch: LaunchRequest) -> None:
        """Pass the launch on once what it needs is unpacked, which is now if it already is."""
        needed = self._needed(launch)
        if launch.only_files or self._ready(needed):
            self._then(launch)
            return
        with self._lock:
            blamed, is_first = self._failures.blamed(needed), needed not in self._launches
            if blamed is None:
                self._launches[needed][launch.key] = launch
        if blamed is not None:
            self._host.refused(launch, blamed, kind=CodeUnavailable.__name__)
        elif is_first:
            self._begin(needed)

    def _needed(self, launch: LaunchRequest) -> Needed:
        # A driver on another machine is sent the archive, and publishing runs no user code.
        remote = launch.pipeline.executor == "spark-submit" and submission.is_remote(self._settings, launch)
        needs_code = not remote and launch.mode != AttemptMode.PUBLISH
        return Needed(self._interpreters.packed_of(launch), launch.pipeline.code.sha256 if needs_code else None)

    def _ready(self, needed: Needed) -> bool:
        try:
            return self._interpreters.ready(needed.packed) and (
                needed.code is None or (cache_of(self._settings) / needed.code).is_dir()
            )
        except OSError:
            # A folder that may not be searched, or whose server is away.
            return False

    def _begin(self, needed: Needed) -> None:
        try:
            threading.Thread(target=self._prepare, args=(needed,), name="prepare", daemon=True).start()
        except RuntimeError as e:
            self._failed(needed, f"{needed} cannot be unpacked: {e}", here=True)

    def end(self, key: Key) -> None:
        with self._lock:
            found = [launches.pop(key) for launches in self._launches.values() if key in launches]
        for launch in found:
            self._host.driver_ended(launch, reported=False, reason="ended before its code was unpacked")

    def close(self) -> None:
        self._closed.set()
        for launch in self.waiting():
            self.end(launch.key)

    def _prepare(self, needed: Needed) -> None:
        """Unpack what is needed. It is tried again while launches wait for it, unless that fails too often."""
        again = True
        while again:
            with self._lock:
                pause = self._failures.pause(needed)
            self._closed.wait(pause)
            try:
                self._interpreters.get(needed.packed)
                self._unpack(needed.code)
            except CodeUnavailable as e:
                again = self._failed(needed, str(e), here=isinstance(e, CannotUnpackHere))
            except Exception as e:  # noqa: BLE001 - without an answer, the launches would wait forever
                again = self._failed(needed, f"{needed} cannot be unpacked: {kind_and_line(e)}", here=False)
            else:
                again = self._worked(needed)

    def _worked(self, needed: Needed) -> bool:
        # Under the lock, so that each launch is always hosted here or there.
        with self._lock:
            self._failures.worked(needed)
            self._note = None
            for launch in self._launches.pop(needed).values():
                self._then(launch)
        return False

    def _failed(self, needed: Needed, reason: str, *, here: bool) -> bool:
        """Returns whether to try it again. After the last try its launches fail, and no others.

        Of a failure ``here``, this machine is to blame. Until the last try other hosts get its launches, and this one
        gets none for a while.
        """
        with self._lock:
            self._failures.failed(needed, reason, fault=not here)
            final = self._failures.are_final(needed)
            if not (final or here) and self._launches[needed]:
                return True
            launches = self._launches.pop(needed).values()
            if here:
                self._note = reason
                self._not_before = time.monotonic() + (0.0 if final else self._failures.pause(needed))
        for launch in launches:
            if final:
                self._host.refused(launch, reason, kind=CodeUnavailable.__name__)
            else:
                self._host.driver_ended(launch, reported=False, reason=reason)
        return False

    def _unpack(self, code: str | None) -> None:
        """Raises ``CannotUnpackHere``. Of what else is wrong with code, the run says so that needs it."""
        try:
            if code is not None:
                unpacked(self._settings, code)
        except CannotUnpackHere:
            raise
        except CodeUnavailable as e:
            log.warning("code_not_unpacked", error=str(e))


# After so many faults in a row, the runs that need it fail.
TRIES = 3
# For so long after its last fault, others that need it fail without a try: each would hold a seat for nothing.
BLAMED_SECONDS = 60.0
K = TypeVar("K", bound=Hashable)


@dataclass
class _Failed:
    """In a row. ``faults``: those of its own, not of this machine or of Spark. ``reason``: of the last of these."""

    count: int = 0
    faults: int = 0
    at: float = 0.0
    blamed_at: float = 0.0
    reason: str = ""


class Failures(Generic[K]):
    """By what failed. Not locked: its owner's lock guards it."""

    def __init__(self) -> None:
        self._failed: dict[K, _Failed] = {}

    def failed(self, what: K, reason: str, *, fault: bool) -> None:
        """It failed once more. ``fault``: of its own, so it would fail elsewhere too."""
        found = self._failed.setdefault(what, _Failed())
        found.count, found.at = found.count + 1, time.monotonic()
        if fault:
            found.faults, found.blamed_at, found.reason = found.faults + 1, found.at, reason

    def worked(self, what: K) -> None:
        """It did not fail."""
        self._failed.pop(what, None)

    def pause(self, what: K) -> float:
        """Seconds until it is tried again; longer after each failure."""
        found = self._failed.get(what)
        return 0.0 if found is None else max(0.0, found.at + processes.pause(found.count) - time.monotonic())

    def are_final(self, what: K) -> bool:
        """Whether it failed so often that what needs it fails, too."""
        found = self._failed.get(what)
        return found is not None and found.count >= TRIES

    def blamed(self, what: K) -> str | None:
        """Why what needs it fails now, if that is its own fault."""
        found = self._failed.get(what)
        is_over = found is None or found.faults < TRIES or time.monotonic() - found.blamed_at >= BLAMED_SECONDS
        return None if found is None or is_over else found.reason
