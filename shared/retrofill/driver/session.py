"""The Spark session of one attempt: Connect or classic.

A Connect session's id is derived from the attempt's, which lets a later attempt end the work of
earlier ones without knowing where their drivers are: it closes their sessions, and Spark then
refuses all requests with those ids.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Iterator, Mapping, Protocol

from retrofill.driver.application import Server, application_of_context
from retrofill.driver.config import Config
from retrofill.driver.cost import cost_of
from retrofill.driver.environment import give, packed_file
from retrofill.driver.facts import Cost, SparkApplication
from retrofill.driver.keepalive import KeepAlive
from retrofill.driver.launch import Launch
from retrofill.driver.loss import CLOSED, condition, gone_in, loss_in, mark, of_spark_in, witness
from retrofill.driver.versions import JobTags, has_release, set_all, settings_of, watch_calls
from retrofill.errors import NotConfigured

NAMESPACE = uuid.UUID("7f0f7d43-52f1-5a0c-9c2e-0b8a5f6b3c11")
# Spark identifies a session by user and id, so all drivers must use the same user.
USER = "retrofill"
# Reconnects quickly to a restarting server, and gives up after about 80 s.
RETRIES = {"max_retries": 40, "initial_backoff": 50, "backoff_multiplier": 2.0, "max_backoff": 2000}
# How long an interrupted operation may take to end.
RELEASE_SECONDS, RELEASE_AGAIN_SECONDS = 10.0, 0.1


class Sessions(Protocol):
    """A driver's access to Spark for one attempt."""

    def open(self) -> None:
        """End the work of earlier attempts and prepare the session."""

    def use(self, tag: str) -> Any:
        """The session. Tags the calling thread's jobs with the attempt, and with ``tag``."""

    def lost(self, error: BaseException) -> BaseException | None:
        """The cause of ``error`` that shows that Spark lost the session, or ``None``.

        No try of the attempt can succeed then. A session that user code stopped is not lost.
        """

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


def session_id(installation: str, attempt_id: int) -> str:
    """The session of an attempt. Installations that share a server number theirs alike."""
    return str(uuid.uuid5(NAMESPACE, f"{installation} {attempt_id}"))


class ConnectSessions:
    """A Spark Connect session. Opening it costs the server nothing until it is used."""

    def __init__(self, settings: Config, server: Server, launch: Launch) -> None:
        self._remote = settings.spark_remote
        self._ui = settings.spark_ui
        self._jars = settings.spark_jars
        self._server = server
        self._launch = launch
        self._policy = witness(**RETRIES)
        self._lock = threading.Lock()
        self._session: Any = None
        self._keep_alive: KeepAlive | None = None
        self._stopped_by_user = False
        self._fresh: Fresh | None = None
        self._tags = Tags()

    def open(self) -> None:
        """Close the sessions of earlier attempts, used or not, and prepare this one's."""
        launch = self._launch
        for attempt_id in launch.earlier:
            self._close(session_id(launch.installation, attempt_id))
        self._session = self._connect(session_id(launch.installation, launch.attempt_id), launch.pipeline.spark_conf)
        self._stop, self._session.stop = self._session.stop, self._stopped
        if self._jars:
            self._session.addArtifacts(*self._jars)
        if (file := packed_file()) is not None:
            give(self._session, self._remote or "", file)

    def use(self, tag: str) -> Any:
        """The session, tagged for this thread. From the first call on it is kept alive."""
        self._tags.put(self._session, self._launch.tag, tag)
        with self._lock:
            if self._keep_alive is None:
                if len(self._launch.runs) > 1:
                    self._fresh = Fresh.of(self._session)
                self._keep_alive = KeepAlive(self._session, self._server.ask)
        return self._session

    def application(self) -> SparkApplication | None:
        return self._server.application

    def clear(self) -> None:
        # Fails if user code stopped the session: the next run needs another one.
        if self._fresh is not None:
            self._fresh.restore(self._session)

    def lost(self, error: BaseException) -> BaseException | None:
        """The error if the server closed or forgot the session, restarted, or is unreachable."""
        if self._stopped_by_user:
            return None
        return loss_in(error, self._policy) or (gone_in(error) if self._is_closed() else None)

    def cost(self) -> Cost | None:
        # Also of a session that is closed: the server still has its jobs.
        return None if self._keep_alive is None else cost_of(self._ui, self._launch.tag)

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

    def _connect(self, id: str, conf: Mapping[str, str]) -> Any:
        from pyspark.sql.connect.session import SparkSession

        session = SparkSession.builder.remote(connection_string(self._remote, id)).create()
        # Before the first call, so the policy sees every error.
        watch_calls(session.client, self._policy, RETRIES, partial(mark, self._policy))
        if conf:
            set_all(session, conf)
        return session

    def _close(self, id: str) -> None:
        session = self._connect(id, {})
        with closed_is_fine():
            # Creates the session if it never existed, so that closing it makes its id unusable.
            session.interruptAll()
            if has_release(session.client):
                _release(session.client)
        session.release_session_on_close = False
        session.stop()


class ClassicSession:
    """The session of a process that spark-submit started."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._session: Any = None
        self._fresh: Fresh | None = None
        self._tags = Tags()
        self._cost: Cost | None = None

    def open(self) -> None:
        """Get or create the session, with spark-submit's master and conf."""
        from pyspark.sql import SparkSession

        self._session = SparkSession.builder.getOrCreate()
        if len(self._launch.runs) > 1:
            self._fresh = Fresh.of(self._session)

    def clear(self) -> None:
        if self._fresh is not None:
            self._fresh.restore(self._session)

    def use(self, tag: str) -> Any:
        self._tags.put(self._session, self._launch.tag, tag)
        return self._session

    def application(self) -> SparkApplication | None:
        return None if self._session is None else application_of_context(self._session.sparkContext)

    def lost(self, error: BaseException) -> BaseException | None:
        """The error if the SparkContext was killed by its master or its JVM died."""
        found = of_spark_in(error)
        return found if found is not None and self._session is not None and self._stopped_under_us() else None

    def _stopped_under_us(self) -> bool:
        """Whether Spark stopped the context or its JVM exited.

        After a stop by user code, ``_jsc`` is None.
        """
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        context = self._session.sparkContext
        if context._jsc is None:
            return False
        try:
            return bool(context._jsc.sc().isStopped())
        except (Py4JError, OSError):
            return True

    def cost(self) -> Cost | None:
        if self._session is not None:
            self._cost = cost_of(self._session.sparkContext.uiWebUrl, None) or self._cost
        return self._cost

    def interrupt(self) -> None:
        """Cancel all jobs: this process has no others."""
        if self._session is not None:
            self._session.sparkContext.cancelAllJobs()

    def interrupt_tag(self, tag: str) -> None:
        JobTags(self._session).interrupt(tag)

    def release(self) -> None:
        if self._session is not None:
            with suppress(Exception):  # user code may have stopped it
                # Its UI ends with it.
                self.cost()
            self._session.stop()
            self._session = None


class Tags(threading.local):
    """The tags of a thread's jobs. A thread of the user's may serve one task after another."""

    task: str | None = None

    def put(self, session: Any, attempt: str, task: str) -> None:
        """Tag the jobs of the calling thread, and no longer with its last task."""
        tags = JobTags(session)
        tags.add(attempt)
        if self.task not in (None, task):
            tags.remove(self.task)
        tags.add(task)
        self.task = task


@dataclass(frozen=True)
class Fresh:
    """A session's state before the first run of a batch, which every run begins with.

    Cached data is not part of it: clearing the cache would empty everybody's.
    """

    settings: Mapping[str, str]
    catalog: str
    schema: str

    @classmethod
    def of(cls, session: Any) -> Fresh:
        """The state as it is."""
        return cls(settings_of(session), session.catalog.currentCatalog(), session.catalog.currentDatabase())

    def restore(self, session: Any) -> None:
        """Drop temporary views and tags, and restore settings, current catalog and schema."""
        # Lists the session's own views too, and unlike others it asks no metastore.
        for view in session.sql("SHOW VIEWS IN global_temp").collect():
            if not view.namespace:
                session.catalog.dropTempView(view.viewName)
        now = Fresh.of(session)
        for key in now.settings.keys() - self.settings.keys():
            session.conf.unset(key)
        for key, value in self.settings.items():
            if now.settings.get(key) != value:
                session.conf.set(key, value)
        # A catalog remembers its schema, so each may differ alone.
        if now.catalog != self.catalog:
            session.catalog.setCurrentCatalog(self.catalog)
        if (now.catalog, now.schema) != (self.catalog, self.schema):
            session.catalog.setCurrentDatabase(self.schema)
        JobTags(session).clear()


def _release(client: Any) -> None:
    """Spark cannot release a session while an interrupted operation of it is still ending, and does not announce its end."""
    until = time.monotonic() + RELEASE_SECONDS
    while True:
        try:
            client.release_session()
            return
        except Exception as e:
            still_ending = (condition(e) or "").startswith("SPARK_CONNECT_ILLEGAL_STATE.")
            if not still_ending or time.monotonic() > until:
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
