"""The Spark session of one attempt: by Connect under an id that derives from run and attempt, or a classic one.

Because the id derives, whoever runs a later attempt can end the work of the earlier ones without knowing where their
drivers are: it closes their sessions, after which Spark refuses all that comes under those ids.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from retrofill.driver.keepalive import KeepAlive
from retrofill.driver.launch import Launch
from retrofill.driver.loss import CLOSED, condition, gone_in, loss_in, of_spark_in, witness
from retrofill.settings import NotConfigured, Settings

NAMESPACE = uuid.UUID("7f0f7d43-52f1-5a0c-9c2e-0b8a5f6b3c11")
# Spark knows a session by user and id: every driver must say the same user, wherever it runs.
USER = "retrofill"
# A server that is being started anew is found soon after it listens; after some 80 s the attempt is given up.
RETRIES = {"max_retries": 40, "initial_backoff": 50, "backoff_multiplier": 2.0, "max_backoff": 2000}


class Sessions(Protocol):
    """How a driver gets at Spark for one attempt."""

    def open(self) -> None:
        """End the work of earlier attempts and be ready to give out the session."""

    def use(self) -> Any:
        """The session, with the attempt's tag set for the calling thread."""

    def lost(self, error: BaseException) -> BaseException | None:
        """What says, behind the error, that Spark lost the session, so that no try of this attempt can succeed any more.

        A session that user code itself stopped is not lost.
        """

    def interrupt(self) -> None:
        """End the attempt's work that runs in Spark."""

    def release(self) -> None:
        """Free what the session holds."""


def session_id(run_id: int, attempt: int) -> str:
    """The id of an attempt's session."""
    return str(uuid.uuid5(NAMESPACE, f"{run_id}/{attempt}"))


class ConnectSessions:
    """A session of a Spark Connect server. Opening costs the server nothing until the session is used."""

    def __init__(self, settings: Settings, launch: Launch) -> None:
        self._remote = settings.spark_remote
        self._launch = launch
        self._policy = witness(**RETRIES)
        self._lock = threading.Lock()
        self._session: Any = None
        self._keep_alive: KeepAlive | None = None
        self._stopped_by_user = False

    def open(self) -> None:
        """Close the sessions of earlier attempts, also those that never were, and prepare this one's."""
        launch = self._launch
        for attempt in range(1, launch.attempt):
            self._close(session_id(launch.run_id, attempt))
        self._session = self._connect(session_id(launch.run_id, launch.attempt), launch.pipeline.spark_conf)
        self._stop, self._session.stop = self._session.stop, self._stopped

    def use(self) -> Any:
        """The session, tagged for this thread; from now on it is kept alive."""
        self._session.addTag(self._launch.tag)
        with self._lock:
            if self._keep_alive is None:
                self._keep_alive = KeepAlive(self._session)
        return self._session

    def lost(self, error: BaseException) -> BaseException | None:
        """The server closed it, forgot it, was started anew or cannot be reached any more."""
        if self._stopped_by_user:
            return None
        return loss_in(error, self._policy) or (gone_in(error) if self._is_closed() else None)

    def interrupt(self) -> None:
        """Interrupt by tag, and close the session, which ends what user code started without the tag."""
        if self._session is not None:
            self._session.interruptTag(self._launch.tag)
            self._end()

    def release(self) -> None:
        """Release the session."""
        if self._session is not None:
            self._end()
            self._session = None

    def _end(self) -> None:
        if self._keep_alive is not None:
            self._keep_alive.stop()
        self._stop()

    def _stopped(self) -> None:
        """What user code gets as the session's ``stop``."""
        self._stopped_by_user = True
        self._stop()

    def _is_closed(self) -> bool:
        """Whether the client closed it, because of what the server said."""
        return self._session is not None and bool(self._session.client.is_closed)

    def _connect(self, id: str, conf: Mapping[str, str]) -> Any:
        from pyspark.sql.connect.session import SparkSession

        session = SparkSession.builder.remote(connection_string(self._remote, id)).create()
        # Before the first call, so that every error is seen.
        session.client.set_retry_policies([self._policy])
        if conf:
            # As the builder does: what cannot be changed any more is only warned of.
            session.conf._set_all(configs=dict(conf), silent=True)
        return session

    def _close(self, id: str) -> None:
        session = self._connect(id, {})
        with closed_is_fine():
            # This makes the session where it never was, so that closing it shuts it for good.
            session.interruptAll()
            session.client.release_session()
        session.release_session_on_close = False
        session.stop()


class ClassicSession:
    """The one session of a process that spark-submit started."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._session: Any = None

    def open(self) -> None:
        """Start or get the session; spark-submit already knows master and conf."""
        from pyspark.sql import SparkSession

        self._session = SparkSession.builder.getOrCreate()

    def use(self) -> Any:
        """The session, tagged for this thread."""
        self._session.addTag(self._launch.tag)
        return self._session

    def lost(self, error: BaseException) -> BaseException | None:
        """Its SparkContext ended without user code's doing: its master killed it, or its Java process died."""
        found = of_spark_in(error)
        return found if found is not None and self._session is not None and self._stopped_under_us() else None

    def _stopped_under_us(self) -> bool:
        """Whether Spark stopped the context, or its Java side is gone; user code's own stop is seen in its Python side."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        context = self._session.sparkContext
        if context._jsc is None:
            return False
        try:
            return bool(context._jsc.sc().isStopped())
        except (Py4JError, OSError):
            return True

    def interrupt(self) -> None:
        """Cancel all of its jobs: nobody else's are in this process."""
        if self._session is not None:
            self._session.sparkContext.cancelAllJobs()

    def release(self) -> None:
        """Stop Spark."""
        if self._session is not None:
            self._session.stop()
            self._session = None


@contextmanager
def closed_is_fine() -> Iterator[None]:
    """Swallow what Spark says of a session that is closed already."""
    try:
        yield
    except Exception as e:
        if condition(e) not in CLOSED:
            raise


def connection_string(remote: str | None, id: str) -> str:
    """``remote`` with the session's id and our user in it. Raises ``NotConfigured`` where there is no address."""
    if remote is None:
        raise NotConfigured("RETROFILL_SPARK_REMOTE")
    base, _, parameters = remote.partition("/;")
    given = [part for part in parameters.split(";") if part]
    if not any(part.startswith("user_id=") for part in given):
        given.append(f"user_id={USER}")
    return ";".join([f"{base.rstrip('/')}/", *given, f"session_id={id}"])


def choose_connect(settings: Settings) -> None:
    """Have ``pyspark.sql`` mean Connect in this process, for user code that gets its session or functions there."""
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    if settings.spark_remote is not None:
        os.environ.setdefault("SPARK_REMOTE", settings.spark_remote)
