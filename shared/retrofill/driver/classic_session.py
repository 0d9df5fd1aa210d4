"""The Spark session of an attempt in a process that spark-submit started."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Iterable

from retrofill.driver.application import application_of_context, cost_of
from retrofill.driver.session_state import CannotClear, Fresh, Tags
from retrofill.driver.versions import JobTags
from retrofill.protocol.facts import Cost, SparkApplication
from retrofill.protocol.launch import Launch
from retrofill.spark.loss import of_spark_in


class SessionStopped(Exception):
    """A task stopped the session in which output is to be published."""


class ClassicSession:
    """The session of a process that spark-submit started."""

    publishes_apart = False
    shares_server = False

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._session: Any = None
        self._publisher: Any = None
        self._fresh: Fresh | None = None
        self._added: list[list[str]] = []
        self._tags = Tags()
        self._cost: Cost | None = None

    def open(self) -> None:
        """Get or create the session, with spark-submit's master and conf."""
        from pyspark.sql import SparkSession

        self._session = SparkSession.builder.getOrCreate()
        if len(self._launch.runs) > 1:
            self._fresh = Fresh.of(self._session)
            self._added = self._resources()

    def clear(self) -> None:
        if self._fresh is not None:
            if self._resources() != self._added:
                raise CannotClear("what was added stays until the session ends: jars, files or archives")
            self._fresh.restore(self._session)

    def _resources(self) -> list[list[str]]:
        context = self._session.sparkContext._jsc.sc()
        kinds = (context.listJars(), context.listFiles(), context.listArchives())
        return [sorted(added.mkString("\n").split("\n")) for added in kinds]

    def use(self, tag: str) -> Any:
        self._tags.put(self._session, self._launch.tag, tag)
        return self._session

    def publisher(self) -> Any:
        """Raises ``SessionStopped``: the publisher's session ends with the only context of this process."""
        if self._session.sparkContext._jsc is None:
            raise SessionStopped("a task stopped it")
        if self._publisher is None:
            self._publisher = self._session.newSession()
        return self._publisher

    def application(self) -> SparkApplication | None:
        return None if self._session is None else application_of_context(self._session.sparkContext)

    def lost(self, error: BaseException) -> BaseException | None:
        """The error if the SparkContext was killed by its master or its JVM died, or nothing can be published in it."""
        if isinstance(error, SessionStopped):
            return error
        found = of_spark_in(error)
        return found if found is not None and self._session is not None and self._stopped_under_us() else None

    def _stopped_under_us(self) -> bool:
        """Whether Spark stopped the context or its JVM exited.

        After a stop by user code, ``_jsc`` is None.
        """
        from py4j.protocol import Py4JError

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

    def end_publications(self, attempts: Iterable[int]) -> None:
        """A call that has returned is over, and the processes of earlier attempts have ended before this one began."""

    def release_publisher(self) -> None:
        """It ended with the session."""
