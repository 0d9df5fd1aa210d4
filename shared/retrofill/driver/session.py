"""The Spark session of one attempt: Connect or classic.

A Connect session's id is derived from the attempt's, which lets a later attempt end the work of
earlier ones without knowing where their drivers are: it closes their sessions, and Spark then
refuses all requests with those ids.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Callable, Iterable, Iterator, Mapping, Protocol

from retrofill.driver.application import ConnectApplication, cost_of
from retrofill.driver.config import Config
from retrofill.driver.session_state import Changes, Tags
from retrofill.driver.versions import JobTags, close_by_stop_only, has_release, leave_at_exit, set_all, watch_calls
from retrofill.errors import NotConfigured, kind_and_line
from retrofill.log import get_log
from retrofill.outputs.tables.publication import PublisherSessions
from retrofill.protocol.facts import Cost, SparkApplication
from retrofill.protocol.launch import Launch
from retrofill.spark.home import give, packed_file
from retrofill.spark.loss import CLOSED, condition, gone_in, is_of, loss_in, mark, may_be_of_a_stop, witness

NAMESPACE = uuid.UUID("7f0f7d43-52f1-5a0c-9c2e-0b8a5f6b3c11")
# Spark identifies a session by user and id, so all drivers must use the same user.
USER = "retrofill"
# Reconnects quickly to a restarting server, and gives up after about 80 s.
RETRIES = {"max_retries": 40, "initial_backoff": 50, "backoff_multiplier": 2.0, "max_backoff": 2000}
# How long an interrupted operation may take to end.
RELEASE_SECONDS, RELEASE_AGAIN_SECONDS = 10.0, 0.1
# Of the check whether Spark still runs jobs, which must be over before an interrupted task counts as stuck (``GRACE_SECONDS``).
CHECK_SECONDS = 8.0
CHECK_RETRIES = {"max_retries": 5, "initial_backoff": 50, "backoff_multiplier": 2.0, "max_backoff": 500}


class Sessions(PublisherSessions, Protocol):
    """A driver's access to Spark for one attempt."""

    publishes_apart: bool
    """Whether publications go on when the session is released."""

    def open(self) -> None:
        """End the work of earlier attempts and prepare the session."""

    def use(self, tag: str) -> Any:
        """The session. Tags the calling thread's jobs with the attempt, and with ``tag``."""

    def application(self) -> SparkApplication | None:
        """The Spark application, if it is known."""

    def clear(self) -> None:
        """Undo what a run changed in the session: settings, catalog, schema, views, tags."""

    def cost(self) -> Cost | None:
        """What Spark used for the attempt, if it tells."""

    def interrupt(self) -> None:
        """End the attempt's work in Spark."""

    def interrupt_tag(self, tag: str) -> None:
        """End the jobs with this tag."""

    def release(self) -> None:
        """Release the session's resources."""

    def release_publisher(self) -> None:
        """Release those of the publisher's session."""


def session_id(installation: str, attempt_id: int) -> str:
    """The session of an attempt. Installations that share a server number theirs alike."""
    return str(uuid.uuid5(NAMESPACE, f"{installation} {attempt_id}"))


def publisher_id(installation: str, attempt_id: int) -> str:
    """The session in which an attempt publishes tables."""
    return str(uuid.uuid5(NAMESPACE, f"{installation} {attempt_id} publisher"))


class ConnectSessions:
    """A Spark Connect session. Without settings, opening it costs the server nothing until it is used."""

    publishes_apart = True
    shares_server = True

    def __init__(self, settings: Config, server: ConnectApplication, launch: Launch) -> None:
        self._remote = settings.spark_remote
        self._ui = settings.spark_ui
        self._jars = settings.spark_jars
        self._server = server
        self._launch = launch
        self._policy, self._publishers = witness(**RETRIES), witness(**RETRIES)
        self._lock = threading.Lock()
        self._session: Any = None
        self._publisher: Any = None
        self._changes: Changes | None = None
        # Of the session and the publisher's, each from when the server knows it.
        self._keep_alive: KeepAlive | None = None
        self._publisher_alive: KeepAlive | None = None
        self._stopped_by_user = False
        self._tags = Tags()

    def open(self) -> None:
        """Close the sessions of earlier attempts, used or not, and prepare this one's."""
        launch = self._launch
        for attempt_id in launch.earlier:
            self._close(session_id(launch.installation, attempt_id))
        # Known before anything can fail, so that it is released in any case.
        self._session = self._connect(session_id(launch.installation, launch.attempt_id), self._policy)
        self._stop, self._session.stop = self._session.stop, self._stopped
        self._prepare(self._session)
        file = packed_file()
        if file is not None:
            give(self._session, self._remote or "", file)
        # User code may do other work before it first uses the session.
        if file is not None or self._jars or self._launch.pipeline.spark_conf:
            self._keep()
        # User code may get the session from pyspark, too, in threads of its own.
        more = len(self._launch.runs) > 1
        self._changes = Changes(self._session, self._launch.tag, self._keep, restores=more)

    def use(self, tag: str) -> Any:
        """The session, tagged for this thread. From its first request on, at the latest, it is kept alive."""
        self._tags.put(self._session, self._launch.tag, tag)
        return self._session

    def publisher(self) -> Any:
        """Another session: user code may stop its own one or change it."""
        if self._publisher is None:
            # The tables refuse commits of a lost driver. A later publisher closes it before it reports a failure.
            own = publisher_id(self._launch.installation, self._launch.attempt_id)
            self._publisher = self._connect(own, self._publishers)
        if self._publisher_alive is None:
            self._prepare(self._publisher)
            self._publisher_alive = KeepAlive(self._publisher)
        return self._publisher

    def application(self) -> SparkApplication | None:
        return self._server.application

    def clear(self) -> None:
        # Fails if user code stopped the session: the next run needs another one.
        if self._changes is not None:
            self._changes.clear()

    def lost(self, error: BaseException) -> BaseException | None:
        """The error if the server closed or forgot a session of ours, restarted, stops, or is unreachable."""
        # What follows a stop by user code is the user's, but not in the publisher's session.
        ours = [self._publishers, *([] if self._stopped_by_user else [self._policy])]
        found = next((loss for policy in ours if (loss := loss_in(error, policy)) is not None), None)
        if found is None and self._policy in ours and self._is_closed():
            found = gone_in(error)
        if found is None and any(is_of(error, policy) for policy in ours) and may_be_of_a_stop(error):
            found = self._stop_of_the_server()
        return found

    def _stop_of_the_server(self) -> BaseException | None:
        """The error with which Spark fails the smallest job of a session that nobody has changed, if it stops.

        A server that is being stopped first cancels its jobs and answers for a second or so. Nothing but their text tells
        these errors from those of the user's own jobs.
        """
        failed: list[BaseException] = []
        asking = threading.Thread(target=self._ask_for_a_row, args=[failed], name="spark-check", daemon=True)
        asking.start()
        # One that waits for executors proves nothing.
        asking.join(CHECK_SECONDS)
        return failed[0] if failed and may_be_of_a_stop(failed[0]) else None

    def _ask_for_a_row(self, failed: list[BaseException]) -> None:
        session = connect_apart(self._remote, CHECK_RETRIES)
        try:
            session.range(1).count()
        except Exception as e:  # noqa: BLE001 - the caller looks at it
            failed.append(e)
        finally:
            with suppress(Exception):  # it ends with its server
                session.stop()

    def cost(self) -> Cost | None:
        # Also of a session that is closed: the server still has its jobs.
        used = self._changes is not None and self._changes.used
        return cost_of(self._ui, self._launch.tag) if used else None

    def interrupt(self) -> None:
        """Interrupt by tag, and close the session to end untagged work too."""
        if self._session is not None:
            JobTags(self._session).interrupt(self._launch.tag)
            self._end()

    def interrupt_tag(self, tag: str) -> None:
        JobTags(self._session).interrupt(tag)

    def release(self) -> None:
        if self._session is not None:
            self._end()
            self._session = None

    def end_publications(self, attempts: Iterable[int]) -> None:
        if self._publisher is not None:
            self._publisher.interruptAll()
        for attempt_id in attempts:
            self._close(publisher_id(self._launch.installation, attempt_id))

    def release_publisher(self) -> None:
        if self._publisher_alive is not None:
            self._publisher_alive.stop()
        if self._publisher is not None:
            self._publisher.stop()
        self._publisher = self._publisher_alive = None

    def _keep(self) -> None:
        with self._lock:
            if self._keep_alive is None:
                self._keep_alive = KeepAlive(self._session, self._server.ask)

    def _end(self) -> None:
        if self._keep_alive is not None:
            self._keep_alive.stop()
        self._stop()

    def _stopped(self) -> None:
        """Replaces the session's ``stop`` for user code."""
        self._stopped_by_user = True
        self._stop()

    def _is_closed(self) -> bool:
        """Whether the client closed it because of the server's response."""
        return self._session is not None and bool(self._session.client.is_closed)

    def _prepare(self, session: Any) -> None:
        """Give a session the pipeline's settings and the pool's jars."""
        if conf := self._launch.pipeline.spark_conf:
            set_all(session, conf)
        if self._jars:
            session.addArtifacts(*self._jars)

    def _connect(self, id: str, policy: Any) -> Any:
        return connect(self._remote, id, policy, RETRIES, partial(mark, policy))

    def _close(self, id: str) -> None:
        session = self._connect(id, self._policy)
        with closed_is_fine():
            # Creates the session if it never existed, so that closing it makes its id unusable.
            session.interruptAll()
            if has_release(session.client):
                release_on_server(session.client)
        session.release_session_on_close = False
        session.stop()


def release_on_server(client: Any) -> None:
    """Close a client's session on its server, or raise Spark's last error after ``RELEASE_SECONDS``.

    Spark cannot while an interrupted operation of the session is still ending, and does not announce its end. How it refuses
    depends on how far the operation was: with an error condition, or with a bare ``IllegalStateException``.
    """
    until = time.monotonic() + RELEASE_SECONDS
    while True:
        try:
            client.release_session()
            return
        except Exception as e:
            if condition(e) in CLOSED or time.monotonic() > until:
                raise
        time.sleep(RELEASE_AGAIN_SECONDS)


@contextmanager
def closed_is_fine() -> Iterator[None]:
    """Ignore Spark's error that a session is already closed."""
    try:
        yield
    except Exception as e:
        if condition(e) not in CLOSED:
            raise


def connect(
    remote: str | None, id: str, policy: Any, limits: Mapping[str, Any], seen: Callable[[BaseException], object]
) -> Any:
    """A Connect session, which has not called the server yet. ``policy``, ``limits``, ``seen``: see ``watch_calls``.

    Raises ``NotConfigured`` if there is no address.
    """
    from pyspark.sql.connect.session import SparkSession

    close_by_stop_only()
    session = SparkSession.builder.remote(connection_string(remote, id)).create()
    leave_at_exit(session.client)
    # Before the first call, so the policy sees every error.
    watch_calls(session.client, policy, limits, seen)
    return session


def connect_apart(remote: str | None, limits: Mapping[str, Any]) -> Any:
    """A Connect session with an id of its own, which retries as ``limits`` say. Raises like ``connect``."""
    policy = witness(**limits)
    return connect(remote, str(uuid.uuid4()), policy, limits, partial(mark, policy))


def connection_string(remote: str | None, id: str) -> str:
    """``remote`` with the session's id and user.

    Raises ``NotConfigured`` if there is no address.
    """
    if remote is None:
        raise NotConfigured("RETROFILL_SPARK_REMOTE")
    base, _, parameters = remote.partition("/;")
    given = [part for part in parameters.split(";") if part]
    if not any(part.startswith("user_id=") for part in given):
        given.append(f"user_id={USER}")
    return ";".join([f"{base.rstrip('/')}/", *given, f"session_id={id}"])


def choose_connect(settings: Config) -> None:
    """Make ``pyspark.sql`` use Connect in this process, for user code that imports it."""
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    if settings.spark_remote is not None:
        os.environ.setdefault("SPARK_REMOTE", settings.spark_remote)


log = get_log(__name__)
TIMEOUT = "spark.connect.session.manager.defaultSessionTimeout"
SHARE = 4
UNKNOWN_SECONDS = 3600.0
_UNITS = {"us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


class KeepAlive:
    """Keeps a Spark Connect session alive during its attempt, by a small request four times per session timeout.

    By default, a server closes sessions that are idle for an hour, and a task may do other work for
    longer than that.
    """

    def __init__(self, session: Any, first: Callable[[Any], object] = lambda _: None) -> None:
        """``first`` is called with the session before the first request, in the same thread."""
        self._session = session
        self._first = first
        self._stopped = threading.Event()
        threading.Thread(target=self._keep, name="keep-alive", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _keep(self) -> None:
        pause = 0.0
        while not self._stopped.wait(pause) and not self._session.client.is_closed:
            try:
                if pause == 0.0:
                    self._first(self._session)
                pause = timeout_seconds(self._session.conf.get(TIMEOUT)) / SHARE
            except Exception as e:  # noqa: BLE001 - users of the session get the error and handle it
                if not self._stopped.is_set():
                    log.warning("session_not_kept_alive", error=kind_and_line(e), condition=condition(e))
                pause = pause or UNKNOWN_SECONDS / SHARE


def timeout_seconds(text: str | None) -> float:
    """A duration in Spark's format (``60m``; without a unit: milliseconds).

    Invalid or 0 (no limit) is Spark's default.
    """
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text or "", re.IGNORECASE)
    unit = _UNITS.get(found[2].lower()) if found else None
    return (float(found[1]) * unit if found and unit else 0.0) or UNKNOWN_SECONDS
